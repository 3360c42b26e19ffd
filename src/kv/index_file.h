#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "inferscale/kv_record.h"
#include "inferscale/status.h"

namespace inferscale {

/// What a clean end leaves for the next start of the disk tier, so that it need not read every
/// header, and knows the order of use. A hint: the segments are the truth.
struct IndexFile {
  struct Segment {
    std::uint64_t number = 0;
    std::uint64_t size = 0;
    std::uint64_t reclaimed = 0;
  };
  struct Entry {
    RecordKey key;
    Hash128 scope;
    std::uint64_t segment = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t cost_tokens = 0;  ///< what having the record again costs
  };
  std::vector<Segment> segments;  ///< by number
  std::vector<Entry> entries;     ///< in the order of giving way

  static constexpr const char* kName = "index";
};

/// Whether the disk tier gives its files such names.
[[nodiscard]] bool is_disk_tier_file(std::string_view name);

[[nodiscard]] std::vector<std::byte> encode_index(const IndexFile& index);
/// Nothing unless the bytes are what `encode_index` makes and fit each other: every entry lies
/// within a segment that is listed.
[[nodiscard]] std::optional<IndexFile> decode_index(std::span<const std::byte> bytes);

/// Replaces the directory's index file and syncs. Errors: as FileSystem.
[[nodiscard]] Status write_index(FileSystem& files, const std::filesystem::path& directory,
                                 const IndexFile& index);
/// Nothing when there is none that can be read.
[[nodiscard]] std::optional<IndexFile> read_index(FileSystem& files,
                                                  const std::filesystem::path& directory);
/// Removes the index file and what a crash left of writing one. Errors: as FileSystem.
[[nodiscard]] Status remove_index(FileSystem& files, const std::filesystem::path& directory);

}  // namespace inferscale
