#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "inferscale/kv_kernels.h"

namespace inferscale::kernels {

/// A run of tokens as a caller of compose or capture describes it.
struct TokenRun {
  std::uint32_t first_position = 0;
  std::size_t first_row = 0;
  std::span<const std::uint32_t> rows;
  std::uint32_t n_tokens = 0;
};

/// Checks a cache by itself and against the table: known dtype, valid shape, a pointer per layer,
/// rows and heads that do not overlap and stay addressable, rotary_dim within a head, a key bias of
/// that shape or none.
/// Errors: kInvalidArgument that names the field and the accepted range.
[[nodiscard]] Status check_cache(const ConstCacheLayout& cache, const RopeTable& table);

/// Checks a record's shape and codec against the cache's. `name` leads the message.
[[nodiscard]] Status check_record(const std::string& name, const RecordMeta& meta,
                                  const KvShape& cache_shape);

/// Checks positions against the table and rows against the cache. `name` leads the message.
[[nodiscard]] Status check_run(const std::string& name, const TokenRun& run, const RopeTable& table,
                               std::size_t n_rows);

/// Checks `layers` against the cache's.
[[nodiscard]] Status check_layers(const LayerRange& layers, std::uint32_t n_layers);

/// The layer behind the last one of `layers`.
[[nodiscard]] inline std::uint32_t end_of(const LayerRange& layers, std::uint32_t n_layers) {
  return layers.count == 0 ? n_layers : layers.first + layers.count;
}

/// The same cache for reading only.
[[nodiscard]] ConstCacheLayout as_const(const CacheLayout& cache);

}  // namespace inferscale::kernels
