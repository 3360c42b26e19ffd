#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "inferscale/status.h"

namespace inferscale {

/// A regular file, open for reading at any offset and, unless it was opened kRead, for writing.
/// Closed on destruction. Thread-safe as long as no two threads touch the same bytes, one of them
/// writing. Errors of every call, besides those named: kUnavailable (I/O), kResourceExhausted (no
/// space), kInvalidArgument (a range that no file can have).
class File {
 public:
  File() = default;
  virtual ~File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Fills all of `out`. Errors: kDataLoss (the file ends before).
  [[nodiscard]] virtual Status read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;
  /// Writes all of `data`, growing the file as needed; a gap that this leaves reads as zeros. After
  /// an error the bytes of the range are undefined and the file may have grown over some of them;
  /// others are untouched.
  [[nodiscard]] virtual Status write_at(std::uint64_t offset, std::span<const std::byte> data) = 0;
  /// Overwrites a range that lies within the file with zeros, in place: what stood there can be
  /// read nowhere once `sync` has returned. Needs no space where files are overwritten in place.
  /// Errors: kInvalidArgument (not within the file).
  [[nodiscard]] virtual Status zero(std::uint64_t offset, std::uint64_t size) = 0;
  /// Gives the blocks of a range back to the file system; it reads as zeros from then on. Returns
  /// false, having changed nothing, where files cannot have holes. Errors: kInvalidArgument (not
  /// within the file).
  [[nodiscard]] virtual Result<bool> punch(std::uint64_t offset, std::uint64_t size) = 0;
  /// Cuts the file off, or lets it grow by zeros.
  [[nodiscard]] virtual Status truncate(std::uint64_t size) = 0;
  /// Returns when the content and the size would survive a power cut (the name does so after
  /// FileSystem::sync_directory). After an error what was written since the last sync is in doubt,
  /// and a second sync proves nothing.
  [[nodiscard]] virtual Status sync() = 0;
  [[nodiscard]] virtual Result<std::uint64_t> size() const = 0;
};

enum class OpenMode {
  kRead,       ///< kNotFound when absent
  kReadWrite,  ///< kNotFound when absent
  kCreate,     ///< read and write; made with mode 0600 when absent
};

struct FileEntry {
  std::string name;
  bool is_directory = false;
};

struct FileSpace {
  std::uint64_t free = 0;  ///< what this user may still write
  std::uint64_t total = 0;
};

struct FileInfo {
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;
};

/// The part of a file system that stores of records use, so that tests can put another in its
/// place: `posix`, one in memory that forgets what was not synced, and one that fails on demand
/// (tests/support). Thread-safe. Every implementation passes
/// tests/conformance/file_system_suite.h. Errors of every call, besides those named: kNotFound (the
/// path or its directory), kUnavailable (I/O, permissions, not a regular file, or a link),
/// kResourceExhausted (no space), kInvalidArgument (an empty path or one with a zero byte);
/// messages name the path.
class FileSystem {
 public:
  FileSystem() = default;
  virtual ~FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  [[nodiscard]] virtual Result<std::unique_ptr<File>> open(const std::filesystem::path& path,
                                                           OpenMode mode) = 0;
  /// In no order, without "." and "..".
  [[nodiscard]] virtual Result<std::vector<FileEntry>> list(
      const std::filesystem::path& directory) = 0;
  [[nodiscard]] virtual Result<FileInfo> info(const std::filesystem::path& path) = 0;
  /// Of the medium that holds the directory.
  [[nodiscard]] virtual Result<FileSpace> space(const std::filesystem::path& directory) = 0;
  /// With its parents, mode 0700; survives a power cut when it returns. kOk when it exists. Errors:
  /// kUnavailable also when something else than a directory is in the way.
  [[nodiscard]] virtual Status make_private_directory(const std::filesystem::path& path) = 0;
  /// Of a file; replaces the file at `to` in one step.
  [[nodiscard]] virtual Status rename(const std::filesystem::path& from,
                                      const std::filesystem::path& to) = 0;
  /// A file. kOk when it does not exist.
  [[nodiscard]] virtual Status remove(const std::filesystem::path& path) = 0;
  /// Makes creations, renames and removals in this directory survive a power cut.
  [[nodiscard]] virtual Status sync_directory(const std::filesystem::path& directory) = 0;
};

/// The operating system's. Static storage.
[[nodiscard]] FileSystem& posix_file_system();

}  // namespace inferscale
