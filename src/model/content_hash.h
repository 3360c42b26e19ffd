#pragma once

#include <cstdint>
#include <filesystem>

#include "inferscale/types.h"

namespace inferscale {

/// What tells, without reading a file, that it is still the one that was hashed.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// Of an open file. Errors: kUnavailable.
[[nodiscard]] Result<FileIdentity> file_identity(int descriptor, const std::filesystem::path& name);

/// SHA-256/128 of the whole content of an open file, whose offset is not moved. With a
/// `cache_directory` (created when missing) the hash of an unchanged file is taken from there; a
/// cache that cannot be read, written or trusted is ignored. Errors: kUnavailable (I/O; the file
/// changed while it was read).
[[nodiscard]] Result<Hash128> file_content_hash(int descriptor, const std::filesystem::path& name,
                                                const std::filesystem::path& cache_directory);

/// The file of the cache that belongs to a model file, for tests and messages.
[[nodiscard]] std::filesystem::path content_hash_cache_path(
    const FileIdentity& identity, const std::filesystem::path& cache_directory);

}  // namespace inferscale
