#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "inferscale/kv_record.h"
#include "inferscale/model_spec.h"

namespace inferscale::kernels {

/// One side of a move of token rows: a record's layer, or a layer of an engine's cache. The
/// elements of a head are contiguous. A view.
template <typename Byte>
struct RowsView {
  Byte* base = nullptr;
  std::size_t row_stride = 0;            ///< bytes
  std::size_t head_stride = 0;           ///< bytes
  const std::size_t* offsets = nullptr;  ///< bytes from base to each token; null: by row_stride

  [[nodiscard]] Byte* token(std::size_t t) const {
    return base + (offsets != nullptr ? offsets[t] : t * row_stride);
  }
};

/// Rows of a record's layer, which lie packed, from token `first` on.
template <typename Byte>
[[nodiscard]] RowsView<Byte> packed_rows(Byte* layer, std::size_t first, std::size_t n_heads,
                                         std::size_t head_bytes) {
  RowsView<Byte> view;
  view.head_stride = head_bytes;
  view.row_stride = n_heads * head_bytes;
  view.base = layer + first * view.row_stride;
  return view;
}

/// Scales of a record's layer from token `first` on; means nothing where the codec has none.
template <typename Byte>
[[nodiscard]] auto packed_scales(Byte* part, std::size_t first, std::size_t n_heads) {
  using Scale = std::conditional_t<std::is_const_v<Byte>, const float, float>;
  return reinterpret_cast<Scale*>(part) + first * n_heads;
}

/// `n_tokens` rows of `n_heads` heads of `head_dim` elements, from one place to another that does
/// not overlap it. Nothing is checked here, and no alignment is assumed.
struct RowMove {
  RowsView<const std::byte> source;
  RowsView<std::byte> target;
  const float* source_scales = nullptr;  ///< [n_tokens][n_heads], of a scaled source
  float* target_scales = nullptr;        ///< the same of the target
  /// [n_heads][head_dim] f16 of keys in kQ4, null of values: what is added to the source's rows,
  /// and taken away from the target's.
  const std::byte* source_means = nullptr;
  const std::byte* target_means = nullptr;
  /// [n_heads][head_dim], null without: what is added to the source's rows before anything else is
  /// done with them, and taken away from the target's last of all; in fp32, before they are
  /// rounded.
  const float* source_bias = nullptr;
  const float* target_bias = nullptr;
  KvCodec source_codec = KvCodec::kF16;
  KvCodec target_codec = KvCodec::kF16;
  std::size_t n_tokens = 0;
  std::size_t n_heads = 0;
  std::size_t head_dim = 0;
};

/// Some tokens of one head, elements anywhere. A view.
template <typename Byte>
struct CellsView {
  Byte* base = nullptr;
  std::size_t element_stride = 0;        ///< bytes
  const std::size_t* offsets = nullptr;  ///< [n_tokens] bytes from base to each token
};

/// What each token's rotated elements are multiplied with; see RotationTile for the order.
struct Rotation {
  RopePairing pairing = RopePairing::kAdjacent;
  std::size_t rotary_dim = 0;
  std::size_t stride = 0;      ///< coefficients from one token to the next
  const float* cos = nullptr;  ///< [n_tokens][stride]
  const float* sin = nullptr;
};

/// Copies rows bit for bit, or converts: to f32 exactly, to f16 and bf16 to nearest even, to a
/// scaled codec as kernels/quantized.h says (a head that it cannot hold gets a NaN as its scale).
/// From kQ4 to itself this is a conversion too, which gives other bytes.
/// REQUIRES of a scaled target, of a source in kQ4, and of a bias: head_dim <= 1024.
void convert_rows(const RowMove& move);

/// Turns the first rotary_dim elements of each head in fp32, rounding once to the target's type;
/// the other elements are treated as by convert_rows. A scaled target's head is quantised after it
/// was turned, as a whole.
void rotate_rows(const RowMove& move, const Rotation& rotation);

/// Spreads packed tokens [n_tokens][head_dim] of one head over cells, bit for bit. Fast where the
/// tokens lie next to one another in memory. REQUIRES: element_bytes is 2 or 4.
void scatter_cells(const std::byte* packed, std::size_t n_tokens, std::size_t head_dim,
                   std::size_t element_bytes, const CellsView<std::byte>& cells);

/// The reverse.
void gather_cells(const CellsView<const std::byte>& cells, std::size_t n_tokens,
                  std::size_t head_dim, std::size_t element_bytes, std::byte* packed);

}  // namespace inferscale::kernels
