#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "inferscale/kv_record.h"
#include "inferscale/status.h"

namespace inferscale {

/// Where the parts of a record lie, in bytes; follows from shape, codec and number of tokens.
struct RecordLayout {
  std::uint64_t first_layer_offset = 0;
  std::array<std::uint64_t, std::size(kKvParts)> part_offsets{};  ///< from a layer's start
  std::array<std::uint64_t, std::size(kKvParts)> part_bytes{};
  std::uint64_t layer_stride = 0;  ///< all parts and padding
  std::uint64_t payload_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// The fixed header of a record (docs/format.md).
struct RecordHeader {
  RecordMeta meta;
  std::uint32_t n_tokens = 0;
  Hash128 token_hash;
  Hash128 body_checksum;
};

/// Errors: kInvalidArgument that names the field and its range.
[[nodiscard]] Status check_record_limits(const RecordMeta& meta, std::uint32_t n_tokens);

/// REQUIRES: check_record_limits(meta, n_tokens) is ok; then nothing here can overflow.
[[nodiscard]] RecordLayout record_layout(const RecordMeta& meta, std::uint32_t n_tokens);

/// Checks magic, version, header checksum, limits and sizes against each other; looks at the first
/// record_format::kHeaderBytes of `bytes` only. Errors: kDataLoss that says which check failed.
[[nodiscard]] Result<RecordHeader> decode_record_header(std::span<const std::byte> bytes);

/// Writes the header with its checksum. REQUIRES: `out` holds record_format::kHeaderBytes.
void encode_record_header(const RecordHeader& header, std::byte* out);

}  // namespace inferscale
