#include <algorithm>
#include <string>

#include "inferscale/kv_kernels.h"
#include "kernels/arguments.h"
#include "kernels/kv_rows.h"
#include "kernels/rotation.h"

namespace inferscale {
namespace {

// Moves tokens first .. first + n_tokens - 1 of an item, all layers.
void compose_tile(const ComposeItem& item, std::size_t first, std::size_t n_tokens,
                  const kernels::Rotation& rotation, const CacheLayout& cache) {
  const Record& record = *item.record;
  const KvShape& shape = cache.shape;
  const std::size_t element = codec_element_bytes(record.meta().codec);
  const kernels::CacheRows where{item.first_row, item.rows};
  kernels::RowMove move;
  move.source_codec = record.meta().codec;
  move.target_codec = cache.dtype;
  move.n_tokens = n_tokens;
  move.n_heads = shape.n_kv_heads;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    move.head_dim = shape.head_dim_k;
    move.source =
        kernels::packed_rows(record.layer_k(layer), first, move.n_heads, move.head_dim * element);
    move.target =
        kernels::cache_rows(cache.k[layer], first, where, cache.k_strides, cache.rows_per_block);
    kernels::rotate_rows(move, rotation);
    move.head_dim = shape.head_dim_v;
    move.source =
        kernels::packed_rows(record.layer_v(layer), first, move.n_heads, move.head_dim * element);
    move.target =
        kernels::cache_rows(cache.v[layer], first, where, cache.v_strides, cache.rows_per_block);
    kernels::convert_rows(move);
  }
}

Status check_items(std::span<const ComposeItem> items, const RopeTable& table,
                   const CacheLayout& cache) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ComposeItem& item = items[i];
    const std::string name = "items[" + std::to_string(i) + "]";
    if (item.record == nullptr) {
      return invalid_argument(name + ".record is null; every item needs a record");
    }
    if (!item.record->has_payload()) {
      return invalid_argument(name + ".record is a description; its keys and values are elsewhere");
    }
    INFERSCALE_RETURN_IF_ERROR(
        kernels::check_record(name + ".record", item.record->meta(), cache.shape));
    const kernels::TokenRun run{item.first_position, item.first_row, item.rows,
                                item.record->n_tokens()};
    INFERSCALE_RETURN_IF_ERROR(kernels::check_run(name, run, table, cache.n_rows));
  }
  return Status();
}

}  // namespace

Status kv_compose(std::span<const ComposeItem> items, const RopeTable& table,
                  const CacheLayout& cache) {
  if (items.empty()) {
    return Status();
  }
  INFERSCALE_RETURN_IF_ERROR(
      kernels::check_cache(kernels::as_const(cache), table).with_context("kv_compose"));
  INFERSCALE_RETURN_IF_ERROR(check_items(items, table, cache).with_context("kv_compose"));
  kernels::RotationTile rotations(table, kernels::RotationTile::Direction::kForward);
  for (const ComposeItem& item : items) {
    const std::size_t n_tokens = item.record->n_tokens();
    for (std::size_t first = 0; first < n_tokens; first += rotations.capacity()) {
      const std::size_t n = std::min(n_tokens - first, rotations.capacity());
      const auto position = item.first_position + static_cast<std::uint32_t>(first);
      compose_tile(item, first, n, rotations.fill(position, n), cache);
    }
  }
  return Status();
}

}  // namespace inferscale
