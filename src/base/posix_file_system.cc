#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "base/file_system.h"
#include "base/posix_io.h"

namespace inferscale {
namespace posix {

Descriptor::~Descriptor() {
  if (value_ >= 0) {
    ::close(value_);
  }
}

int Descriptor::release() { return std::exchange(value_, -1); }

Status failed(const char* action, const std::filesystem::path& path, int error) {
  std::string message = fmt::format("cannot {} {}: {}", action, path.string(),
                                    std::generic_category().message(error));
  switch (error) {
    case EROFS:
      return unavailable(message +
                         "; mount it for writing, or copy the data directory to a disk that can be "
                         "written: InferScale opens none for reading alone");
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

Status check_path(const std::filesystem::path& path) {
  if (path.empty() || path.native().find('\0') != std::string::npos) {
    return invalid_argument("a file path must not be empty or contain a zero byte");
  }
  return Status();
}

int open_retrying(const std::filesystem::path& path, int flags, mode_t mode) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

}  // namespace posix

namespace {

using posix::check_path;
using posix::Descriptor;
using posix::failed;
using posix::open_retrying;

/// Calls until no signal interrupts; the last result.
template <typename Call>
int retrying(const Call& call) {
  int result = -1;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

constexpr std::uint64_t kMaxOffset =
    static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());  // what the calls can name

class PosixFile final : public File {
 public:
  PosixFile(std::filesystem::path path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  Status read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  Status write_at(std::uint64_t offset, std::span<const std::byte> data) override;
  Status zero(std::uint64_t offset, std::uint64_t size) override;
  Result<bool> punch(std::uint64_t offset, std::uint64_t size) override;
  Status truncate(std::uint64_t size) override;
  Status sync() override;
  Result<std::uint64_t> size() const override;

 private:
  Status check_range(std::uint64_t offset, std::uint64_t size) const {
    if (offset > kMaxOffset || size > kMaxOffset - offset) {
      return invalid_argument(
          fmt::format("{}: no file has a byte {} + {}", path_.string(), offset, size));
    }
    return Status();
  }
  Status check_within(std::uint64_t offset, std::uint64_t size) const {
    INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t end, this->size());
    if (offset > end || size > end - offset) {
      return invalid_argument(fmt::format("{}: bytes {} + {} are not within its {}", path_.string(),
                                          offset, size, end));
    }
    return Status();
  }

  const std::filesystem::path path_;
  const Descriptor descriptor_;
};

Status PosixFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  INFERSCALE_RETURN_IF_ERROR(check_range(offset, out.size()));
  while (!out.empty()) {
    const ssize_t n =
        ::pread(descriptor_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (n == 0) {
      return data_loss(fmt::format("{} ends before byte {}", path_.string(), offset + out.size()));
    }
    if (n < 0 && errno != EINTR) {
      return failed("read", path_, errno);
    }
    const std::size_t done = n > 0 ? static_cast<std::size_t>(n) : 0;
    out = out.subspan(done);
    offset += done;
  }
  return Status();
}

Status PosixFile::write_at(std::uint64_t offset, std::span<const std::byte> data) {
  INFERSCALE_RETURN_IF_ERROR(check_range(offset, data.size()));
  while (!data.empty()) {
    const ssize_t n =
        ::pwrite(descriptor_.get(), data.data(), data.size(), static_cast<off_t>(offset));
    if (n < 0 && errno != EINTR) {
      return failed("write", path_, errno);
    }
    const std::size_t done = n > 0 ? static_cast<std::size_t>(n) : 0;
    data = data.subspan(done);
    offset += done;
  }
  return Status();
}

Status PosixFile::zero(std::uint64_t offset, std::uint64_t size) {
  static constexpr std::array<std::byte, 1U << 16> kZeros{};
  INFERSCALE_RETURN_IF_ERROR(check_within(offset, size));
  while (size > 0) {
    const std::uint64_t chunk = std::min<std::uint64_t>(size, kZeros.size());
    INFERSCALE_RETURN_IF_ERROR(write_at(offset, std::span(kZeros).first(chunk)));
    offset += chunk;
    size -= chunk;
  }
  return Status();
}

Result<bool> PosixFile::punch(std::uint64_t offset, std::uint64_t size) {
  INFERSCALE_RETURN_IF_ERROR(check_within(offset, size));
  if (size == 0) {
    return true;
  }
  const int result = retrying([&] {
    return ::fallocate(descriptor_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                       static_cast<off_t>(offset), static_cast<off_t>(size));
  });
  if (result == 0) {
    return true;
  }
  if (errno == EOPNOTSUPP || errno == ENOSYS) {
    return false;
  }
  return failed("free space in", path_, errno);
}

Status PosixFile::truncate(std::uint64_t size) {
  INFERSCALE_RETURN_IF_ERROR(check_range(size, 0));
  return retrying([&] { return ::ftruncate(descriptor_.get(), static_cast<off_t>(size)); }) == 0
             ? Status()
             : failed("truncate", path_, errno);
}

Status PosixFile::sync() {
  // A size that grew is part of what fdatasync writes; only times and the like are not.
  return retrying([&] { return ::fdatasync(descriptor_.get()); }) == 0
             ? Status()
             : failed("sync", path_, errno);
}

Result<std::uint64_t> PosixFile::size() const {
  struct stat info {};
  if (::fstat(descriptor_.get(), &info) != 0) {
    return failed("inspect", path_, errno);
  }
  return static_cast<std::uint64_t>(info.st_size);
}

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, OpenMode mode) override;
  Result<std::vector<FileEntry>> list(const std::filesystem::path& directory) override;
  Result<FileInfo> info(const std::filesystem::path& path) override;
  Result<FileSpace> space(const std::filesystem::path& directory) override;
  Status make_private_directory(const std::filesystem::path& path) override;
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Status remove(const std::filesystem::path& path) override;
  Status sync_directory(const std::filesystem::path& directory) override;
};

Result<std::unique_ptr<File>> PosixFileSystem::open(const std::filesystem::path& path,
                                                    OpenMode mode) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  // O_NOFOLLOW: what a link points to may not be ours. O_NONBLOCK: a pipe must not hang us.
  const int flags = (mode == OpenMode::kRead ? O_RDONLY : O_RDWR) |
                    (mode == OpenMode::kCreate ? O_CREAT : 0) | O_NOFOLLOW | O_NONBLOCK;
  const int descriptor = open_retrying(path, flags, 0600);
  if (descriptor < 0) {
    return failed("open", path, errno);
  }
  auto file = std::make_unique<PosixFile>(path, descriptor);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) {
    return failed("inspect", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return unavailable("cannot open " + path.string() + ": not a regular file");
  }
  return std::unique_ptr<File>(std::move(file));
}

Result<std::vector<FileEntry>> PosixFileSystem::list(const std::filesystem::path& directory) {
  INFERSCALE_RETURN_IF_ERROR(check_path(directory));
  std::error_code error;
  std::vector<FileEntry> entries;
  std::filesystem::directory_iterator entry(directory, error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    const std::filesystem::file_status status = entry->symlink_status(error);
    if (!error) {
      entries.push_back({entry->path().filename().string(), std::filesystem::is_directory(status)});
    } else if (error == std::errc::no_such_file_or_directory) {  // removed meanwhile
      error.clear();
    } else {
      break;
    }
    entry.increment(error);
  }
  if (error) {
    return failed("list", directory, error.value());
  }
  return entries;
}

Result<FileInfo> PosixFileSystem::info(const std::filesystem::path& path) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return failed("inspect", path, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return unavailable("cannot inspect " + path.string() + ": not a regular file");
  }
  FileInfo result;
  result.size = static_cast<std::uint64_t>(info.st_size);
  result.modified_ns = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return result;
}

Result<FileSpace> PosixFileSystem::space(const std::filesystem::path& directory) {
  INFERSCALE_RETURN_IF_ERROR(check_path(directory));
  struct statvfs info {};
  if (retrying([&] { return ::statvfs(directory.c_str(), &info); }) != 0) {
    return failed("inspect", directory, errno);
  }
  return FileSpace{std::uint64_t{info.f_bavail} * info.f_frsize,
                   std::uint64_t{info.f_blocks} * info.f_frsize};
}

bool directory_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

Status PosixFileSystem::make_private_directory(const std::filesystem::path& path) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  std::filesystem::path partial;
  for (const std::filesystem::path& part : path) {
    const std::filesystem::path parent = partial;
    partial /= part;
    if (::mkdir(partial.c_str(), 0700) == 0) {
      INFERSCALE_RETURN_IF_ERROR(sync_directory(parent.empty() ? "." : parent));
    } else if (const int error = errno; !directory_exists(partial)) {
      const Status status = failed("create directory", partial, error);
      // Nothing that was to be there already is missing: a directory cannot be made here.
      return status.code() == StatusCode::kNotFound ? unavailable(status.message()) : status;
    }
  }
  return Status();
}

Status PosixFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  INFERSCALE_RETURN_IF_ERROR(check_path(from));
  INFERSCALE_RETURN_IF_ERROR(check_path(to));
  return ::rename(from.c_str(), to.c_str()) == 0 ? Status() : failed("replace", to, errno);
}

Status PosixFileSystem::remove(const std::filesystem::path& path) {
  INFERSCALE_RETURN_IF_ERROR(check_path(path));
  return ::unlink(path.c_str()) == 0 || errno == ENOENT ? Status() : failed("remove", path, errno);
}

Status PosixFileSystem::sync_directory(const std::filesystem::path& directory) {
  INFERSCALE_RETURN_IF_ERROR(check_path(directory));
  const Descriptor opened(open_retrying(directory, O_RDONLY | O_DIRECTORY));
  if (!opened.valid()) {
    return failed("open directory", directory, errno);
  }
  // Some file systems refuse to sync a directory (EINVAL); there is nothing else to ask of them.
  if (retrying([&] { return ::fsync(opened.get()); }) != 0 && errno != EINVAL) {
    return failed("sync directory", directory, errno);
  }
  return Status();
}

}  // namespace

FileSystem& posix_file_system() {
  static PosixFileSystem files;
  return files;
}

}  // namespace inferscale
