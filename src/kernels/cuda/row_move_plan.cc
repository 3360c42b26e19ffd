#include <algorithm>
#include <limits>
#include <string>

#include "kernels/cuda/row_move.h"

namespace inferscale::cuda {
namespace {

constexpr std::uint32_t kChunk = 8;            // elements that a thread loads at once
constexpr std::uint32_t kLayersPerThread = 4;  // coefficients are read once for so many layers

MoveStrides strides_of(const CacheStrides& strides, std::size_t rows_per_block) {
  return {strides.row, strides.head, rows_per_block == 0 ? 0 : strides.block};
}

bool contiguous(const CacheStrides& strides, std::size_t element) {
  return strides.element == 0 || strides.element == element;
}

bool aligned(std::uint64_t value) { return value % 16 == 0; }

bool aligned(const MoveStrides& strides) {
  return aligned(strides.row) && aligned(strides.head) && aligned(strides.block);
}

bool aligned(const std::vector<const std::byte*>& layers) {
  return std::all_of(layers.begin(), layers.end(), [](const std::byte* layer) {
    return aligned(reinterpret_cast<std::uintptr_t>(layer));
  });
}

bool can_be_wide(const ConstCacheLayout& cache, const RowMoves& m) {
  const bool shape = m.dim_k % kChunk == 0 && m.dim_v % kChunk == 0 && m.pairs % kChunk == 0;
  return shape && aligned(m.k) && aligned(m.v) && aligned(cache.k) && aligned(cache.v);
}

}  // namespace

Status plan_moves(const ConstCacheLayout& cache, const RopeTable& table, std::uint32_t max_tokens,
                  RowMoves* moves, MoveKind* kind) {
  RowMoves& m = *moves;
  const std::size_t packed_element = codec_element_bytes(kind->packed_codec);
  const std::size_t cache_element = codec_element_bytes(cache.dtype);
  if (packed_element == 0 || cache_element == 0 || codec_is_scaled(cache.dtype)) {
    return invalid_argument("the codec of records or cache is not known");
  }
  if (!contiguous(cache.k_strides, cache_element) || !contiguous(cache.v_strides, cache_element)) {
    return unsupported("elements of a head that are not contiguous in the cache");
  }
  kind->cache_codec = cache.dtype;
  kind->pairing = table.spec().pairing;
  m.pairs = table.pairs();
  m.n_layers = cache.shape.n_layers;
  m.n_heads = cache.shape.n_kv_heads;
  m.dim_k = cache.shape.head_dim_k;
  m.dim_v = cache.shape.head_dim_v;
  m.rows_per_block = static_cast<std::uint32_t>(cache.rows_per_block);
  m.k = strides_of(cache.k_strides, cache.rows_per_block);
  m.v = strides_of(cache.v_strides, cache.rows_per_block);
  m.k_token_bytes = part_token_bytes(cache.shape, kind->packed_codec, KvPart::kK);
  m.v_token_bytes = part_token_bytes(cache.shape, kind->packed_codec, KvPart::kV);
  m.scale_token_bytes = part_token_bytes(cache.shape, kind->packed_codec, KvPart::kKScales);
  kind->wide = can_be_wide(cache, m);
  const std::uint32_t rest = m.dim_k - 2 * m.pairs;
  if (kind->wide) {
    m.k_units = m.pairs / kChunk + (rest / kChunk + 1) / 2;
    m.v_units = (m.dim_v / kChunk + 1) / 2;
  } else {
    m.k_units = m.pairs + rest;
    m.v_units = m.dim_v;
  }
  m.units = m.n_heads * std::max(m.k_units, m.v_units);
  m.layers_per_thread = std::min(m.n_layers, kLayersPerThread);
  m.slices = (m.n_layers + m.layers_per_thread - 1) / m.layers_per_thread;
  constexpr std::uint64_t kWarp = 32;  // a head's
  const std::uint64_t per_token =
      quantises(*kind) ? kWarp * 2 * m.n_heads * m.n_layers : std::uint64_t{m.units} * m.slices;
  if (per_token * max_tokens > std::uint64_t{1} << 31) {
    return unsupported("a launch of " + std::to_string(max_tokens) + " tokens; for this shape " +
                       std::to_string((std::uint64_t{1} << 31) / per_token) + " is the most");
  }
  return Status();
}

}  // namespace inferscale::cuda
