#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "inferscale/kv_record.h"
#include "inferscale/status.h"

/// The bytes of the disk tier's segments, version 1. docs/format.md is normative.
namespace inferscale::segment_format {

inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint64_t kAlignment = 64;  // of entries, so that records are aligned too
inline constexpr std::uint64_t kHeaderBytes = 64;
inline constexpr std::uint64_t kEntryHeaderBytes = 64;
inline constexpr std::uint64_t kStateAt = 8;  // in an entry header
inline constexpr std::string_view kExtension = ".isseg";

using HeaderBytes = std::array<std::byte, kHeaderBytes>;
using StateBytes = std::array<std::byte, 8>;

enum class EntryState {
  kLive,    ///< exactly one value of the eight bytes; whatever else stands there is not live
  kErased,  ///< not to be served; its bytes may still be there. Damaged states are read as this.
  kClean,   ///< its bytes are zero, and have been synced
};

struct EntryHeader {
  RecordKey key;
  std::uint64_t bytes = 0;  ///< of the entry: this header and the record
  std::uint64_t tag = 0;    ///< record_tag of the record that belongs to this header
  EntryState state = EntryState::kLive;
};

/// Ties an entry header to its record: the first bytes of the record's own header checksum.
/// REQUIRES: `record` holds a record's fixed header.
[[nodiscard]] std::uint64_t record_tag(std::span<const std::byte> record);

/// "<16 hex digits>.isseg".
[[nodiscard]] std::string segment_name(std::uint64_t number);
/// Nothing unless `name` is exactly what `segment_name` makes.
[[nodiscard]] std::optional<std::uint64_t> segment_number(std::string_view name);

[[nodiscard]] HeaderBytes encode_segment_header(std::uint64_t number);
/// Errors: kDataLoss. REQUIRES: `bytes` holds kHeaderBytes.
[[nodiscard]] Status check_segment_header(std::uint64_t number, std::span<const std::byte> bytes);

/// The checksum covers where the entry stands, too: a header that got elsewhere is not one.
[[nodiscard]] HeaderBytes encode_entry_header(std::uint64_t number, std::uint64_t offset,
                                              const EntryHeader& header);
/// Nothing when these bytes are no header, or damaged; a damaged state alone is kErased.
/// REQUIRES: `bytes` holds kEntryHeaderBytes.
[[nodiscard]] std::optional<EntryHeader> decode_entry_header(std::uint64_t number,
                                                             std::uint64_t offset,
                                                             std::span<const std::byte> bytes);
[[nodiscard]] StateBytes encode_state(EntryState state);

}  // namespace inferscale::segment_format
