#include <algorithm>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "kernels/arguments.h"
#include "kernels/cache_tile.h"
#include "kernels/kv_rows.h"
#include "kernels/rotation.h"

namespace inferscale {
namespace {

// Moves rows of a cache into a record, a tile of tokens at a time. Where the elements of a head are
// apart, the tile is packed into `stage_` first, head by head.
class Capturer {
 public:
  Capturer(const ConstCacheLayout& cache, const CaptureSource& source, const RopeTable& table,
           RecordBuilder& builder)
      : cache_(cache),
        source_(source),
        table_(table),
        builder_(builder),
        element_(codec_element_bytes(cache.dtype)),
        keys_(cache.k_strides, cache.rows_per_block, element_),
        values_(cache.v_strides, cache.rows_per_block, element_),
        rotations_(table, kernels::RotationTile::Direction::kInverse, kernels::RotationTile::kNear),
        limit_(std::min(rotations_.capacity(), kernels::kTileTokens)) {
    if (keys_.staged() || values_.staged()) {
      stage_.resize(limit_ * std::max(cache.shape.k_elements(), cache.shape.v_elements()) *
                    element_);
    }
  }

  void run(const LayerRange& layers) {
    const kernels::CacheRows where{source_.first_row, source_.rows};
    const std::size_t all = builder_.n_tokens();
    const std::uint32_t end = kernels::end_of(layers, cache_.shape.n_layers);
    for (first_ = 0; first_ < all; first_ += count_) {
      count_ = kernels::tile_tokens(where, first_, all, limit_, element_);
      keys_.clear();
      values_.clear();
      keys_.append(where, first_, count_);
      values_.append(where, first_, count_);
      rotations_.fill(0, source_.first_position + static_cast<std::uint32_t>(first_), count_);
      for (std::uint32_t layer = layers.first; layer < end; ++layer) {
        move(true, cache_.shape.head_dim_k, keys_, cache_.k[layer], layer);
        move(false, cache_.shape.head_dim_v, values_, cache_.v[layer], layer);
      }
    }
  }

 private:
  void move(bool keys, std::size_t head_dim, const kernels::CacheTile& tile, const std::byte* cache,
            std::uint32_t layer) {
    kernels::RowMove rows;
    rows.source_codec = cache_.dtype;
    rows.target_codec = builder_.meta().codec;
    rows.n_tokens = count_;
    rows.n_heads = cache_.shape.n_kv_heads;
    rows.head_dim = head_dim;
    rows.target =
        kernels::packed_rows(keys ? builder_.layer_k(layer) : builder_.layer_v(layer), first_,
                             rows.n_heads, head_dim * codec_element_bytes(rows.target_codec));
    rows.target_scales = kernels::packed_scales(
        builder_.layer_part(layer, keys ? KvPart::kKScales : KvPart::kVScales), first_,
        rows.n_heads);
    if (tile.staged()) {
      const std::size_t head_bytes = head_dim * element_;
      for (std::size_t head = 0; head < rows.n_heads; ++head) {
        kernels::gather_cells(tile.cells(cache, head, 0), count_, head_dim, element_,
                              stage_.data() + head * count_ * head_bytes);
      }
      rows.source.base = stage_.data();
      rows.source.row_stride = head_bytes;
      rows.source.head_stride = count_ * head_bytes;
    } else {
      rows.source = tile.rows(cache, 0, count_);
    }
    if (keys) {
      rows.target_bias = table_.key_bias_of(layer, cache_.shape);
      kernels::rotate_rows(rows, rotations_.from(0));
    } else {
      kernels::convert_rows(rows);
    }
  }

  const ConstCacheLayout& cache_;
  const CaptureSource& source_;
  const RopeTable& table_;
  RecordBuilder& builder_;
  const std::size_t element_;
  kernels::CacheTile keys_;
  kernels::CacheTile values_;
  kernels::RotationTile rotations_;
  const std::size_t limit_;
  std::vector<std::byte> stage_;  // [head][token][element]; empty where nothing is staged
  std::size_t first_ = 0;         // of the tile
  std::size_t count_ = 0;
};

Status check(const ConstCacheLayout& cache, const CaptureSource& source, const RopeTable& table,
             const RecordBuilder& builder) {
  INFERSCALE_RETURN_IF_ERROR(kernels::check_cache(cache, table));
  INFERSCALE_RETURN_IF_ERROR(kernels::check_record("builder", builder.meta(), cache.shape));
  if (builder.meta().codec == KvCodec::kQ4) {
    return invalid_argument(
        "builder has codec q4, which needs the means of all keys; capture in a wider codec and "
        "transcode");
  }
  const kernels::TokenRun run{source.first_position, source.first_row, source.rows,
                              builder.n_tokens()};
  return kernels::check_run("source", run, table, cache.n_rows);
}

}  // namespace

Status kv_capture(const ConstCacheLayout& cache, const CaptureSource& source,
                  const RopeTable& table, RecordBuilder& builder, LayerRange layers) {
  INFERSCALE_RETURN_IF_ERROR(check(cache, source, table, builder).with_context("kv_capture"));
  INFERSCALE_RETURN_IF_ERROR(
      kernels::check_layers(layers, cache.shape.n_layers).with_context("kv_capture"));
  Capturer(cache, source, table, builder).run(layers);
  return builder.check_scales(layers.first, layers.count).with_context("kv_capture");
}

}  // namespace inferscale
