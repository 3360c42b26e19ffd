#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace inferscale {
namespace {

/// Closes a descriptor when it goes out of scope. `close` reports what the kernel could only say
/// then.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) {
      ::close(value_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return value_; }
  [[nodiscard]] bool valid() const { return value_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(value_, -1); }
  [[nodiscard]] bool close() { return ::close(release()) == 0 || errno == EINTR; }

 private:
  int value_;
};

Status failed(const char* action, const std::filesystem::path& path, int error) {
  std::string message = fmt::format("cannot {} {}: {}", action, path.string(),
                                    std::generic_category().message(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return not_found(std::move(message));
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return resource_exhausted(std::move(message));
    default:
      return unavailable(std::move(message));
  }
}

/// For calls whose contract knows no kNotFound: a missing parent makes the path unavailable.
Status failed_write(const char* action, const std::filesystem::path& path, int error) {
  const Status status = failed(action, path, error);
  return status.code() == StatusCode::kNotFound ? unavailable(status.message()) : status;
}

/// The C interface would silently end such a path at its first zero byte.
Status check_path(const std::filesystem::path& path) {
  if (path.empty() || path.native().find('\0') != std::string::npos) {
    return invalid_argument("a file path must not be empty or contain a zero byte");
  }
  return Status();
}

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int descriptor = -1;
  do {
    descriptor = ::open(path, flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

/// Reads up to `size` bytes; fewer only at the end of the file. -1 on error.
ssize_t read_fully(int descriptor, std::byte* data, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(descriptor, data + done, size - done);
    if (n == 0) {
      break;
    }
    if (n < 0 && errno != EINTR) {
      return -1;
    }
    done += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  return static_cast<ssize_t>(done);
}

bool write_fully(int descriptor, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = ::write(descriptor, data.data(), data.size());
    if (n < 0 && errno != EINTR) {
      return false;
    }
    data = data.subspan(n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  return true;
}

bool sync_retrying(int descriptor) {
  int result = 0;
  do {
    result = ::fsync(descriptor);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

/// Makes a rename or a removal in the directory of `path` durable.
Status sync_parent(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  const Descriptor directory(open_retrying(parent.c_str(), O_RDONLY | O_DIRECTORY));
  if (!directory.valid()) {
    return failed_write("open directory", parent, errno);
  }
  // Some file systems refuse to sync a directory (EINVAL); there is nothing else to ask of them.
  if (!sync_retrying(directory.get()) && errno != EINVAL) {
    return failed_write("sync directory", parent, errno);
  }
  return Status();
}

Status fill_and_close(Descriptor& file, const std::filesystem::path& name,
                      std::span<const std::byte> data, Durability durability) {
  if (!write_fully(file.get(), data)) {
    return failed_write("write", name, errno);
  }
  if (durability == Durability::kSync && !sync_retrying(file.get())) {
    return failed_write("sync", name, errno);
  }
  if (!file.close()) {
    return failed_write("write", name, errno);
  }
  return Status();
}

bool overwrite_with_zeros(int descriptor, std::uint64_t size) {
  const std::vector<std::byte> zeros(std::min<std::uint64_t>(size, 1U << 20));
  while (size > 0) {
    const std::uint64_t chunk = std::min<std::uint64_t>(size, zeros.size());
    if (!write_fully(descriptor, std::span(zeros).first(chunk))) {
      return false;
    }
    size -= chunk;
  }
  return sync_retrying(descriptor);
}

bool directory_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

/// Whether `path` still names the file behind `descriptor` (it may have been removed meanwhile).
bool still_names(const std::filesystem::path& path, int descriptor) {
  struct stat by_name {};
  struct stat by_descriptor {};
  return ::stat(path.c_str(), &by_name) == 0 && ::fstat(descriptor, &by_descriptor) == 0 &&
         by_name.st_ino == by_descriptor.st_ino && by_name.st_dev == by_descriptor.st_dev;
}

}  // namespace

Result<std::vector<std::byte>> read_file(const std::filesystem::path& path,
                                         std::uint64_t max_bytes) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  const Descriptor file(open_retrying(path.c_str(), O_RDONLY));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) {
    return failed("read", path, errno);
  }
  const Status too_large = resource_exhausted(
      fmt::format("{} is larger than the {} bytes that are accepted", path.string(), max_bytes));
  if (S_ISREG(info.st_mode) && static_cast<std::uint64_t>(info.st_size) > max_bytes) {
    return too_large;
  }
  try {
    std::vector<std::byte> data;
    // Sizes of pipes and of files that grow are not known beforehand: read until the end.
    std::uint64_t chunk =
        std::max<std::uint64_t>(static_cast<std::uint64_t>(info.st_size), 65'535) + 1;
    while (true) {
      const std::size_t done = data.size();
      data.resize(done + chunk);
      const ssize_t n = read_fully(file.get(), data.data() + done, chunk);
      if (n < 0) {
        return failed("read", path, errno);
      }
      data.resize(done + static_cast<std::size_t>(n));
      if (data.size() > max_bytes) {
        return too_large;
      }
      if (static_cast<std::uint64_t>(n) < chunk) {
        return data;
      }
    }
  } catch (const std::bad_alloc&) {
    return resource_exhausted("not enough memory to read " + path.string());
  }
}

Status write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> data,
                         Durability durability) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  std::string name = path.string() + ".tmp-XXXXXX";
  Descriptor file(::mkostemp(name.data(), O_CLOEXEC));  // mode 0600 whatever the umask
  if (!file.valid()) {
    return failed_write("create", path, errno);
  }
  Status status = fill_and_close(file, path, data, durability);
  if (status.ok() && ::rename(name.c_str(), path.c_str()) != 0) {
    status = failed_write("replace", path, errno);
  }
  if (!status.ok()) {
    ::unlink(name.c_str());
    return status;
  }
  return durability == Durability::kSync ? sync_parent(path) : Status();
}

Status wipe_file(const std::filesystem::path& path) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  // O_NOFOLLOW: what a link points to may not be ours. O_NONBLOCK: a pipe must not hang us.
  const Descriptor file(open_retrying(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) {
    return errno == ENOENT ? Status() : failed_write("wipe", path, errno);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    return failed_write("wipe", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return unavailable("cannot wipe " + path.string() + ": not a regular file");
  }
  if (!overwrite_with_zeros(file.get(), static_cast<std::uint64_t>(info.st_size))) {
    return failed_write("wipe", path, errno);
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return failed_write("remove", path, errno);
  }
  return sync_parent(path);
}

Status make_private_directory(const std::filesystem::path& path) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  std::filesystem::path partial;
  for (const std::filesystem::path& part : path) {
    partial /= part;
    if (::mkdir(partial.c_str(), 0700) != 0) {
      const int error = errno;
      if (!directory_exists(partial)) {
        return unavailable(fmt::format("cannot create directory {}: {}", partial.string(),
                                       std::generic_category().message(error)));
      }
    }
  }
  return Status();
}

Result<std::vector<std::byte>> random_bytes(std::size_t count) {
  try {
    std::vector<std::byte> data(count);
    std::size_t done = 0;
    while (done < count) {
      const ssize_t n = ::getrandom(data.data() + done, count - done, 0);
      if (n < 0 && errno != EINTR) {
        return internal_error("the operating system gives no random bytes: " +
                              std::generic_category().message(errno));
      }
      done += n > 0 ? static_cast<std::size_t>(n) : 0;
    }
    return data;
  } catch (const std::bad_alloc&) {
    return internal_error("not enough memory for random bytes");
  }
}

Result<FileLock> FileLock::acquire(const std::filesystem::path& path) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  while (true) {
    Descriptor file(open_retrying(path.c_str(), O_RDWR | O_CREAT, 0600));
    if (!file.valid()) {
      return failed_write("open lock file", path, errno);
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EWOULDBLOCK) {
        return conflict(path.string() + " is locked by another process");
      }
      return failed_write("lock", path, errno);
    }
    // A lock on a file that was removed since would exclude nobody.
    if (still_names(path, file.get())) {
      return FileLock(file.release());
    }
  }
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);  // ours is released with `other`
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

}  // namespace inferscale
