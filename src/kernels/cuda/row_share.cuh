#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/row_move.h"

// Which part of a move is one thread's, and where it lies.
namespace inferscale::cuda {

// Where a token's K and V of layer 0 lie on the packed side, and what a layer is long there.
struct PackedPlace {
  std::byte* k;
  std::byte* v;
  std::byte* k_scales;
  std::byte* v_scales;
  std::uint64_t layer_bytes;
  std::uint32_t position;
};

template <bool kCapture>
INFERSCALE_HD PackedPlace packed_place(const RowMoves& m, const MoveToken& token,
                                       std::uint32_t index) {
  PackedPlace out;
  if constexpr (kCapture) {
    const PackedRun& run = m.runs[token.packed];
    const std::uint32_t t = index - run.first_token;
    auto* base = reinterpret_cast<std::byte*>(run.address);
    out.k = base + t * m.k_token_bytes;
    out.v = base + run.v_offset + t * m.v_token_bytes;
    out.k_scales = base + run.k_scales + t * m.scale_token_bytes;
    out.v_scales = base + run.v_scales + t * m.scale_token_bytes;
    out.layer_bytes = run.layer_bytes;
    out.position = run.first_position + t;
  } else {
    const std::uint32_t t = token.place >> kPositionBits;
    auto* base = reinterpret_cast<std::byte*>(token.packed);
    out.k = base + t * m.k_token_bytes;
    out.v = base + m.packed_v_offset + t * m.v_token_bytes;
    out.k_scales = base + m.packed_k_scales + t * m.scale_token_bytes;
    out.v_scales = base + m.packed_v_scales + t * m.scale_token_bytes;
    out.layer_bytes = m.packed_layer_bytes;
    out.position = token.place & ((1U << kPositionBits) - 1);
  }
  return out;
}

INFERSCALE_HD std::uint64_t row_offset(const MoveStrides& strides, std::uint32_t rows_per_block,
                                       std::uint32_t row) {
  if (rows_per_block == 0) {
    return row * strides.row;
  }
  const std::uint32_t block = row / rows_per_block;
  return block * strides.block + (row - block * rows_per_block) * strides.row;
}

// A thread's part of the heads: which head, and which unit of it; `some` is false beyond the last.
struct Part {
  bool some;
  std::uint32_t head;
  std::uint32_t unit;
};

INFERSCALE_HD Part part_of(std::uint32_t unit, std::uint32_t per_head, std::uint32_t n_heads) {
  const std::uint32_t head = unit / per_head;
  return {head < n_heads, head, unit - head * per_head};
}

// The index of a thread, taken apart: units of a slice next to each other, so that neighbouring
// threads touch neighbouring bytes; then the slices of a token, then the tokens.
struct Share {
  bool some;
  std::uint32_t unit;
  std::uint32_t token;
  std::uint32_t first_layer;
  std::uint32_t end_layer;
};

INFERSCALE_HD Share share_of(const RowMoves& m, std::uint32_t thread) {
  const std::uint32_t rest = thread / m.units;
  const std::uint32_t token = rest / m.slices;
  const std::uint32_t first = (rest - token * m.slices) * m.layers_per_thread;
  const std::uint32_t end = first + m.layers_per_thread;
  return {token < m.n_tokens, thread - rest * m.units, token, first,
          end < m.n_layers ? end : m.n_layers};
}

// What a head of K on the packed side lacks; null where the model adds nothing to its keys. Kernels
// for keys with a bias are other ones, so that those without keep their registers.
template <bool kBiased>
INFERSCALE_HD const float* bias_of(const RowMoves& m, std::uint32_t layer, std::uint32_t head) {
  if constexpr (kBiased) {
    return m.key_bias + (std::size_t{layer} * m.n_heads + head) * m.dim_k;
  } else {
    return nullptr;
  }
}

// The coefficients of the way back: c / (c^2 + s^2) and -s / (c^2 + s^2), in double as on the host.
INFERSCALE_HD void inverted(float* c, float* s) {
  const double dc = *c;
  const double ds = *s;
  const double scale = 1.0 / (dc * dc + ds * ds);
  *c = static_cast<float>(dc * scale);
  *s = static_cast<float>(-ds * scale);
}

}  // namespace inferscale::cuda
