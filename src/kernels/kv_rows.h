#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "inferscale/kv_kernels.h"
#include "inferscale/kv_record.h"
#include "inferscale/model_spec.h"

namespace inferscale::kernels {

/// One side of a move of token rows: a record's layer, or a layer of an engine's cache. A view.
template <typename Byte>
struct RowsView {
  Byte* base = nullptr;
  CacheStrides strides;
  std::size_t rows_per_block = 0;
  std::size_t first_row = 0;            ///< of token 0, when there are no `rows`
  const std::uint32_t* rows = nullptr;  ///< row of each token, or null: consecutive

  [[nodiscard]] Byte* token(std::size_t t) const {
    const std::size_t row = rows != nullptr ? std::size_t{rows[t]} : first_row + t;
    if (rows_per_block == 0) {
      return base + row * strides.row;
    }
    return base + row / rows_per_block * strides.block + row % rows_per_block * strides.row;
  }
};

/// Rows of a record's layer, which lie packed, from token `first` on.
template <typename Byte>
[[nodiscard]] RowsView<Byte> packed_rows(Byte* layer, std::size_t first, std::size_t n_heads,
                                         std::size_t head_bytes) {
  RowsView<Byte> view;
  view.strides.head = head_bytes;
  view.strides.row = n_heads * head_bytes;
  view.base = layer + first * view.strides.row;
  return view;
}

/// Where the tokens of a call stand in a cache: in rows[t], or in first_row + t when `rows` is
/// empty.
struct CacheRows {
  std::size_t first_row = 0;
  std::span<const std::uint32_t> rows;
};

/// Rows of an engine's layer from token `first` of the call on.
template <typename Byte>
[[nodiscard]] RowsView<Byte> cache_rows(Byte* layer, std::size_t first, const CacheRows& where,
                                        const CacheStrides& strides, std::size_t rows_per_block) {
  RowsView<Byte> view;
  view.base = layer;
  view.strides = strides;
  view.rows_per_block = rows_per_block;
  view.first_row = where.first_row + first;
  view.rows = where.rows.empty() ? nullptr : where.rows.data() + first;
  return view;
}

/// `n_tokens` rows of `n_heads` heads of `head_dim` elements, from one place to another that does
/// not overlap it. Nothing is checked here, and no alignment is assumed.
struct RowMove {
  RowsView<const std::byte> source;
  RowsView<std::byte> target;
  KvCodec source_codec = KvCodec::kF16;
  KvCodec target_codec = KvCodec::kF16;
  std::size_t n_tokens = 0;
  std::size_t n_heads = 0;
  std::size_t head_dim = 0;
};

/// What each token's rotated elements are multiplied with; see RotationTile for the order.
struct Rotation {
  RopePairing pairing = RopePairing::kAdjacent;
  std::size_t rotary_dim = 0;
  std::size_t stride = 0;      ///< coefficients from one token to the next
  const float* cos = nullptr;  ///< [n_tokens][stride]
  const float* sin = nullptr;
};

/// Copies rows bit for bit, or converts (f16 -> f32 exact, f32 -> f16 to nearest even).
void convert_rows(const RowMove& move);

/// Turns the first rotary_dim elements of each head in fp32, rounding once to the target's type;
/// the other elements are treated as by convert_rows.
void rotate_rows(const RowMove& move, const Rotation& rotation);

}  // namespace inferscale::kernels
