#include <algorithm>
#include <string>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "kernels/arguments.h"
#include "kernels/cache_tile.h"
#include "kernels/kv_rows.h"
#include "kernels/rotation.h"

namespace inferscale {
namespace {

using kernels::CacheTile;

std::uint32_t count_of(const ComposeItem& item) {
  return item.n_tokens != 0 ? item.n_tokens : item.record->n_tokens() - item.first_token;
}

// Tokens of an item that are part of a tile.
struct Slice {
  const ComposeItem* item = nullptr;
  std::size_t first = 0;  // of the item's tokens
  std::size_t count = 0;
  std::size_t slot = 0;  // in the group
};

struct Tile {
  std::size_t first_slice = 0;
  std::size_t n_slices = 0;
  std::size_t slot = 0;  // in the group
  std::size_t n_tokens = 0;
};

// Keys or values.
struct Part {
  bool keys = false;
  std::size_t head_dim = 0;
  const CacheTile* tokens = nullptr;
};

// Moves items into a cache, a tile of tokens at a time. Where the elements of a head are apart, the
// tile is made in `stage_` first, head by head and packed, and spread from there; then a group of
// tiles is moved in one layer before the next, since they share pages, if not cache lines.
class Composer {
 public:
  Composer(std::span<const ComposeItem> items, const RopeTable& table, const CacheLayout& cache)
      : items_(items),
        table_(table),
        cache_(cache),
        element_(codec_element_bytes(cache.dtype)),
        keys_(cache.k_strides, cache.rows_per_block, element_),
        values_(cache.v_strides, cache.rows_per_block, element_),
        staged_(keys_.staged() || values_.staged()),
        rotations_(table, kernels::RotationTile::Direction::kForward,
                   staged_ ? kernels::RotationTile::kFar : kernels::RotationTile::kNear),
        limit_(std::min(rotations_.capacity(), kernels::kTileTokens)),
        group_limit_(staged_ ? std::min(rotations_.capacity(), kGroupTokens) : limit_) {
    if (staged_) {
      stage_.resize(limit_ * std::max(cache.shape.k_elements(), cache.shape.v_elements()) *
                    element_);
    }
  }

  void run(const LayerRange& layers) {
    const Part keys{true, cache_.shape.head_dim_k, &keys_};
    const Part values{false, cache_.shape.head_dim_v, &values_};
    const std::uint32_t end = kernels::end_of(layers, cache_.shape.n_layers);
    while (next_group()) {
      for (std::uint32_t layer = layers.first; layer < end; ++layer) {
        for (const Tile& tile : tiles_) {
          move(keys, tile, layer, cache_.k[layer]);
          move(values, tile, layer, cache_.v[layer]);
        }
      }
    }
  }

 private:
  static constexpr std::size_t kGroupTokens = 512;

  bool next_group() {
    slices_.clear();
    tiles_.clear();
    keys_.clear();
    values_.clear();
    n_tokens_ = 0;
    do {
      add_tile();
    } while (staged_ && item_ < items_.size() && n_tokens_ < group_limit_);
    return n_tokens_ > 0;
  }

  // A tile is of one item; of as many as fill it where neighbouring tokens share cache lines.
  void add_tile() {
    Tile tile{slices_.size(), 0, n_tokens_, 0};
    const std::size_t limit = std::min(limit_, group_limit_ - n_tokens_);
    bool more = true;
    while (more && tile.n_tokens < limit && item_ < items_.size()) {
      more = add_slice(items_[item_], limit - tile.n_tokens) && staged_;
      tile.n_tokens = n_tokens_ - tile.slot;
    }
    tile.n_slices = slices_.size() - tile.first_slice;
    tiles_.push_back(tile);
  }

  // False when the tile ends within the item.
  bool add_slice(const ComposeItem& item, std::size_t room) {
    const kernels::CacheRows where{item.first_row, item.rows};
    const std::size_t all = count_of(item);
    const std::size_t count = staged_ ? kernels::tile_tokens(where, token_, all, room, element_)
                                      : std::min(all - token_, room);
    slices_.push_back({&item, token_, count, n_tokens_});
    keys_.append(where, token_, count);
    values_.append(where, token_, count);
    rotations_.fill(n_tokens_, item.first_position + static_cast<std::uint32_t>(token_), count);
    n_tokens_ += count;
    token_ += count;
    if (token_ < all) {
      return false;
    }
    ++item_;
    token_ = 0;
    return true;
  }

  void move(const Part& part, const Tile& tile, std::uint32_t layer, std::byte* cache) {
    const std::size_t head_bytes = part.head_dim * element_;
    for (const Slice& slice : std::span(slices_).subspan(tile.first_slice, tile.n_slices)) {
      kernels::RowMove rows = move_of(part, slice, layer);
      if (part.tokens->staged()) {
        rows.target.base = stage_.data() + (slice.slot - tile.slot) * head_bytes;
        rows.target.row_stride = head_bytes;
        rows.target.head_stride = tile.n_tokens * head_bytes;
      } else {
        rows.target = part.tokens->rows(cache, slice.slot, slice.count);
      }
      if (part.keys) {
        kernels::rotate_rows(rows, rotations_.from(slice.slot));
      } else {
        kernels::convert_rows(rows);
      }
    }
    for (std::size_t head = 0; part.tokens->staged() && head < cache_.shape.n_kv_heads; ++head) {
      kernels::scatter_cells(stage_.data() + head * tile.n_tokens * head_bytes, tile.n_tokens,
                             part.head_dim, element_, part.tokens->cells(cache, head, tile.slot));
    }
  }

  // From the record's rows; the target is the caller's.
  [[nodiscard]] kernels::RowMove move_of(const Part& part, const Slice& slice,
                                         std::uint32_t layer) const {
    const Record& record = *slice.item->record;
    const std::size_t first = slice.item->first_token + slice.first;
    kernels::RowMove rows;
    rows.source = kernels::packed_rows(part.keys ? record.layer_k(layer) : record.layer_v(layer),
                                       first, cache_.shape.n_kv_heads,
                                       codec_head_bytes(record.meta().codec, part.head_dim));
    rows.source_scales = kernels::packed_scales(
        record.layer_part(layer, part.keys ? KvPart::kKScales : KvPart::kVScales), first,
        cache_.shape.n_kv_heads);
    if (part.keys) {
      rows.source_means = record.layer_part(layer, KvPart::kKMeans);
      rows.source_bias = table_.key_bias_of(layer, cache_.shape);
    }
    rows.source_codec = record.meta().codec;
    rows.target_codec = cache_.dtype;
    rows.n_tokens = slice.count;
    rows.n_heads = cache_.shape.n_kv_heads;
    rows.head_dim = part.head_dim;
    return rows;
  }

  std::span<const ComposeItem> items_;
  const RopeTable& table_;
  const CacheLayout& cache_;
  const std::size_t element_;
  CacheTile keys_;
  CacheTile values_;
  const bool staged_;
  kernels::RotationTile rotations_;
  const std::size_t limit_;        // tokens of a tile
  const std::size_t group_limit_;  // tokens of a group
  std::vector<std::byte> stage_;   // [head][token][element] of a tile
  std::vector<Slice> slices_;
  std::vector<Tile> tiles_;
  std::size_t n_tokens_ = 0;  // of the group
  std::size_t item_ = 0;      // what comes next
  std::size_t token_ = 0;
};

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
    const std::uint32_t of_record = item.record->n_tokens();
    if (item.first_token >= of_record || item.n_tokens > of_record - item.first_token) {
      return invalid_argument(name + " begins at token " + std::to_string(item.first_token) +
                              " and has " + std::to_string(item.n_tokens) + "; its record has " +
                              std::to_string(of_record) + " tokens, counted from 0");
    }
    const kernels::TokenRun run{item.first_position, item.first_row, item.rows, count_of(item)};
    INFERSCALE_RETURN_IF_ERROR(kernels::check_run(name, run, table, cache.n_rows));
  }
  return Status();
}

}  // namespace

Status kv_compose(std::span<const ComposeItem> items, const RopeTable& table,
                  const CacheLayout& cache, LayerRange layers) {
  if (items.empty()) {
    return Status();
  }
  INFERSCALE_RETURN_IF_ERROR(
      kernels::check_cache(kernels::as_const(cache), table).with_context("kv_compose"));
  INFERSCALE_RETURN_IF_ERROR(
      kernels::check_layers(layers, cache.shape.n_layers).with_context("kv_compose"));
  INFERSCALE_RETURN_IF_ERROR(check_items(items, table, cache).with_context("kv_compose"));
  Composer(items, table, cache).run(layers);
  return Status();
}

}  // namespace inferscale
