#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/status.h"

namespace inferscale::cli {

using RecordPtr = std::shared_ptr<const Record>;

/// Rows [begin, end) of a record, in every layer; those of kQ4, which hang together, in f32.
/// REQUIRES: begin < end <= n_tokens.
[[nodiscard]] Result<RecordPtr> slice_record(const Record& record, std::uint32_t begin,
                                             std::uint32_t end);
/// The records' rows one behind the other, under the first one's meta; in f32 where they have
/// several codecs, or kQ4. REQUIRES: one shape, at least one record.
[[nodiscard]] Result<RecordPtr> join_records(std::span<const RecordPtr> records);
/// The same record with its keys multiplied; a scaled codec's are quantised again, kQ4's are f32.
[[nodiscard]] Result<RecordPtr> scale_keys(const Record& record, float factor);

/// Relative L2 distance ‖b − a‖ / ‖a‖ of two records' rows, layer by layer and token by token.
struct RowDistances {
  std::vector<std::vector<double>> k;  ///< [n_layers][n_tokens]
  std::vector<std::vector<double>> v;
};
/// REQUIRES: one shape and number of tokens.
[[nodiscard]] Result<RowDistances> row_distances(const Record& a, const Record& b);

}  // namespace inferscale::cli
