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

#include "base/posix_io.h"

namespace inferscale {
namespace {

using posix::check_path;
using posix::Descriptor;
using posix::failed;
using posix::open_retrying;

/// For calls whose contract knows no kNotFound: a missing parent makes the path unavailable.
Status never_not_found(const Status& status) {
  return status.code() == StatusCode::kNotFound ? unavailable(status.message()) : status;
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

/// A name that no other process guesses, beside `path`.
Result<std::filesystem::path> temporary_name(const std::filesystem::path& path) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::byte> random, random_bytes(8));
  std::filesystem::path name = path;
  name += ".tmp-";
  for (const std::byte byte : random) {
    name += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  }
  return name;
}

Status write_new(const std::filesystem::path& path, std::span<const std::byte> data,
                 Durability durability, FileSystem& files) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                              files.open(path, OpenMode::kCreate));
  INFERSCALE_RETURN_IF_ERROR(file->write_at(0, data));
  return durability == Durability::kSync ? file->sync() : Status();
}

Status too_large(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return resource_exhausted(
      fmt::format("{} is larger than the {} bytes that are accepted", path.string(), max_bytes));
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
  const Descriptor file(open_retrying(path, O_RDONLY));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) {
    return failed("read", path, errno);
  }
  if (S_ISREG(info.st_mode) && static_cast<std::uint64_t>(info.st_size) > max_bytes) {
    return too_large(path, max_bytes);
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
        return too_large(path, max_bytes);
      }
      if (static_cast<std::uint64_t>(n) < chunk) {
        return data;
      }
    }
  } catch (const std::bad_alloc&) {
    return resource_exhausted("not enough memory to read " + path.string());
  }
}

Result<std::vector<std::byte>> read_file(const std::filesystem::path& path, std::uint64_t max_bytes,
                                         FileSystem& files) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.open(path, OpenMode::kRead));
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t size, file->size());
  if (size > max_bytes) {
    return too_large(path, max_bytes);
  }
  try {
    std::vector<std::byte> data(size);
    INFERSCALE_RETURN_IF_ERROR(file->read_at(0, data));
    return data;
  } catch (const std::bad_alloc&) {
    return resource_exhausted("not enough memory to read " + path.string());
  }
}

Status write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> data,
                         Durability durability, FileSystem& files) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  INFERSCALE_ASSIGN_OR_RETURN(const std::filesystem::path temporary, temporary_name(path));
  Status status = write_new(temporary, data, durability, files);
  if (status.ok()) {
    status = files.rename(temporary, path);
  }
  if (!status.ok()) {
    (void)files.remove(temporary);
    return never_not_found(status);
  }
  return durability == Durability::kSync ? sync_parent(path, files) : Status();
}

Status wipe_file(const std::filesystem::path& path, FileSystem& files) {
  {
    auto file = files.open(path, OpenMode::kReadWrite);
    if (!file.ok()) {
      return file.status().code() == StatusCode::kNotFound ? Status() : file.status();
    }
    INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t size, (*file)->size());
    INFERSCALE_RETURN_IF_ERROR((*file)->zero(0, size));
    INFERSCALE_RETURN_IF_ERROR((*file)->sync());
  }
  INFERSCALE_RETURN_IF_ERROR(files.remove(path));
  return sync_parent(path, files);
}

Status sync_parent(const std::filesystem::path& path, FileSystem& files) {
  return never_not_found(files.sync_directory(path.has_parent_path() ? path.parent_path() : "."));
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
    Descriptor file(open_retrying(path, O_RDWR | O_CREAT, 0600));
    if (!file.valid()) {
      return never_not_found(failed("open lock file", path, errno));
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EWOULDBLOCK) {
        return conflict(path.string() + " is locked by another process");
      }
      return failed("lock", path, errno);
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
