#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "inferscale/status.h"

namespace inferscale {

/// Whole file, or all that a pipe gives; follows links. Errors: kNotFound, kUnavailable (I/O),
/// kResourceExhausted when larger than `max_bytes`.
[[nodiscard]] Result<std::vector<std::byte>> read_file(const std::filesystem::path& path,
                                                       std::uint64_t max_bytes);
/// The same of a regular file of `files`.
[[nodiscard]] Result<std::vector<std::byte>> read_file(const std::filesystem::path& path,
                                                       std::uint64_t max_bytes, FileSystem& files);

/// Writes a temporary file `path`.tmp-<random> (mode 0600), optionally syncs it, and renames it
/// over `path`, so that readers see the old or the new content. Errors: kResourceExhausted (no
/// space), kUnavailable (read-only, I/O); the message names the path. On error no temporary file
/// stays behind.
enum class Durability { kNone, kSync };
[[nodiscard]] Status write_file_atomic(const std::filesystem::path& path,
                                       std::span<const std::byte> data, Durability durability,
                                       FileSystem& files = posix_file_system());

/// Overwrites a regular file with zeros, syncs it and removes it. kOk when it does not exist.
[[nodiscard]] Status wipe_file(const std::filesystem::path& path,
                               FileSystem& files = posix_file_system());

/// Syncs the directory that holds `path`.
[[nodiscard]] Status sync_parent(const std::filesystem::path& path,
                                 FileSystem& files = posix_file_system());

/// From the operating system's generator. Errors: kInternal.
[[nodiscard]] Result<std::vector<std::byte>> random_bytes(std::size_t count);

/// An exclusive advisory lock on a file, released by the kernel when the process ends, however it
/// ends. Movable.
class FileLock {
 public:
  /// Errors: kConflict when another process (or another FileLock) holds it; kUnavailable.
  [[nodiscard]] static Result<FileLock> acquire(const std::filesystem::path& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace inferscale
