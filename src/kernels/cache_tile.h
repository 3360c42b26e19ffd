#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "kernels/kv_rows.h"

namespace inferscale::kernels {

/// How many tokens are moved at a time: few enough that a head of them, staged, stays in the
/// first-level cache, and whole cache lines of them where the tokens of an element are neighbours.
inline constexpr std::size_t kTileTokens = 64;

/// Where tokens stand in a cache: in rows[t], or in first_row + t when `rows` is empty.
struct CacheRows {
  std::size_t first_row = 0;
  std::span<const std::uint32_t> rows;

  [[nodiscard]] std::size_t row(std::size_t t) const {
    return rows.empty() ? first_row + t : rows[t];
  }
};

/// Keys, or values, of some tokens in an engine's cache: the same places in every layer.
class CacheTile {
 public:
  CacheTile(const CacheStrides& strides, std::size_t rows_per_block, std::size_t element_bytes)
      : strides_(strides), rows_per_block_(rows_per_block), element_bytes_(element_bytes) {}

  void clear() { offsets_.clear(); }
  /// Adds tokens first .. first + n_tokens - 1 of `where`.
  void append(const CacheRows& where, std::size_t first, std::size_t n_tokens);

  /// Are elements of a head apart, so that they are moved through packed rows?
  [[nodiscard]] bool staged() const {
    return strides_.element != 0 && strides_.element != element_bytes_;
  }
  /// Rows of the tokens from `slot` on. REQUIRES: !staged().
  template <typename Byte>
  [[nodiscard]] RowsView<Byte> rows(Byte* layer, std::size_t slot, std::size_t n_tokens) const {
    RowsView<Byte> view;
    view.row_stride = strides_.row;
    view.head_stride = strides_.head;
    if (follow(slot, n_tokens)) {
      view.base = layer + offsets_[slot];
    } else {
      view.base = layer;
      view.offsets = offsets_.data() + slot;
    }
    return view;
  }
  /// One head of the tokens from `slot` on.
  template <typename Byte>
  [[nodiscard]] CellsView<Byte> cells(Byte* layer, std::size_t head, std::size_t slot) const {
    return {layer + head * strides_.head, strides_.element, offsets_.data() + slot};
  }

 private:
  [[nodiscard]] bool follow(std::size_t slot, std::size_t n_tokens) const;

  CacheStrides strides_;
  std::size_t rows_per_block_;
  std::size_t element_bytes_;
  std::vector<std::size_t> offsets_;  // bytes from a layer's pointer to each token
};

/// The tile of at most `limit` tokens that starts at token `first` of n_tokens: where it can, it
/// ends where whole cache lines of elements do.
[[nodiscard]] std::size_t tile_tokens(const CacheRows& where, std::size_t first,
                                      std::size_t n_tokens, std::size_t limit,
                                      std::size_t element_bytes);

}  // namespace inferscale::kernels
