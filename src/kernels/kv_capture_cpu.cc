#include <algorithm>

#include "inferscale/kv_kernels.h"
#include "kernels/arguments.h"
#include "kernels/kv_rows.h"
#include "kernels/rotation.h"

namespace inferscale {
namespace {

// Moves tokens first .. first + n_tokens - 1 of the run, all layers.
void capture_tile(const ConstCacheLayout& cache, const CaptureSource& run, std::size_t first,
                  std::size_t n_tokens, const kernels::Rotation& rotation, RecordBuilder& builder) {
  const KvShape& shape = cache.shape;
  const std::size_t element = codec_element_bytes(builder.meta().codec);
  const kernels::CacheRows where{run.first_row, run.rows};
  kernels::RowMove move;
  move.source_codec = cache.dtype;
  move.target_codec = builder.meta().codec;
  move.n_tokens = n_tokens;
  move.n_heads = shape.n_kv_heads;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    move.head_dim = shape.head_dim_k;
    move.source =
        kernels::cache_rows(cache.k[layer], first, where, cache.k_strides, cache.rows_per_block);
    move.target =
        kernels::packed_rows(builder.layer_k(layer), first, move.n_heads, move.head_dim * element);
    kernels::rotate_rows(move, rotation);
    move.head_dim = shape.head_dim_v;
    move.source =
        kernels::cache_rows(cache.v[layer], first, where, cache.v_strides, cache.rows_per_block);
    move.target =
        kernels::packed_rows(builder.layer_v(layer), first, move.n_heads, move.head_dim * element);
    kernels::convert_rows(move);
  }
}

Status check(const ConstCacheLayout& cache, const CaptureSource& source, const RopeTable& table,
             const RecordBuilder& builder) {
  INFERSCALE_RETURN_IF_ERROR(kernels::check_cache(cache, table));
  INFERSCALE_RETURN_IF_ERROR(kernels::check_record("builder", builder.meta(), cache.shape));
  const kernels::TokenRun run{source.first_position, source.first_row, source.rows,
                              builder.n_tokens()};
  return kernels::check_run("source", run, table, cache.n_rows);
}

}  // namespace

Status kv_capture(const ConstCacheLayout& cache, const CaptureSource& source,
                  const RopeTable& table, RecordBuilder& builder) {
  INFERSCALE_RETURN_IF_ERROR(check(cache, source, table, builder).with_context("kv_capture"));
  kernels::RotationTile rotations(table, kernels::RotationTile::Direction::kInverse);
  const std::size_t n_tokens = builder.n_tokens();
  for (std::size_t first = 0; first < n_tokens; first += rotations.capacity()) {
    const std::size_t n = std::min(n_tokens - first, rotations.capacity());
    const auto position = source.first_position + static_cast<std::uint32_t>(first);
    capture_tile(cache, source, first, n, rotations.fill(position, n), builder);
  }
  return Status();
}

}  // namespace inferscale
