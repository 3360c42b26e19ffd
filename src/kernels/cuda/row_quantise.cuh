#pragma once

#include "kernels/cuda/row_move_narrow.cuh"
#include "kernels/quantized.h"

// Capture into a scaled codec: the scale of a head needs all of its elements, so a team of threads
// takes a head. It reads the head twice; the second time it lies in the first-level cache.
namespace inferscale::cuda {

// How many heads a move has: of every token, layer, and K and V.
INFERSCALE_HD std::uint64_t heads_of(const RowMoves& m) {
  return std::uint64_t{m.n_tokens} * m.n_layers * m.n_heads * 2;
}

// The steps of kernels::head_scale, which the device cannot call.
INFERSCALE_HD float scale_of_head(std::uint32_t magnitude_bits, float largest_element) {
  if (magnitude_bits >= bits_of(kernels::kHuge)) {
    return float_of(kernels::kNoScaleBits);
  }
  if (magnitude_bits < bits_of(kernels::kTiny)) {
    return 0;
  }
  const float exact = quotient(float_of(magnitude_bits), largest_element);
  return float_of((bits_of(exact) + 0xFFU) & ~0xFFU);
}

INFERSCALE_HD void write_scaled(KvCodec codec, float value, float scale, std::byte* to) {
  std::uint8_t element = 0;
  if (scale > 0) {  // which a NaN is not
    const float q = quotient(value, scale);
    element = codec == KvCodec::kQ8 ? Q8Element::store(q) : E4m3Element::store(q);
  }
  *to = static_cast<std::byte>(element);
}

INFERSCALE_HD std::uint32_t larger(std::uint32_t largest, float value) {
  const std::uint32_t bits = bits_of(value) & 0x7FFFFFFFU;
  return bits > largest ? bits : largest;
}

// One head, by the threads of a team: kSize of them, this one being `lane`; max() gives all of
// them the largest of what each has.
template <bool kBiased, class Team>
INFERSCALE_HD void quantise_head(const RowMoves& m, const MoveKind& kind, std::uint64_t index,
                                 const Team& team) {
  const auto head = static_cast<std::uint32_t>(index % m.n_heads);
  index /= m.n_heads;
  const bool keys = index % 2 == 0;
  index /= 2;
  const auto layer = static_cast<std::uint32_t>(index % m.n_layers);
  const auto token_index = static_cast<std::uint32_t>(index / m.n_layers);
  const MoveToken token = m.tokens[token_index];
  const PackedPlace place = packed_place<true>(m, token, token_index);
  const MoveStrides& strides = keys ? m.k : m.v;
  const std::uint32_t dim = keys ? m.dim_k : m.dim_v;
  const std::uint32_t pairs = keys ? m.pairs : 0;
  const HeadSide cache{kind.cache_codec,
                       m.layers[keys ? layer : m.n_layers + layer] +
                           row_offset(strides, m.rows_per_block, token.row) + head * strides.head,
                       1.0F, nullptr};
  const std::uint64_t in_layer = layer * place.layer_bytes;
  const HeadSide packed{kind.packed_codec,
                        (keys ? place.k : place.v) + in_layer + std::size_t{head} * dim, 1.0F,
                        keys ? bias_of<kBiased>(m, layer, head) : nullptr};
  std::uint32_t largest = 0;
  for (std::uint32_t pair = team.lane; pair < pairs; pair += Team::kSize) {
    const TurnedPair turned = turned_pair(m, kind, cache, packed, pair, place.position);
    largest = larger(larger(largest, turned.x), turned.y);
  }
  for (std::uint32_t i = 2 * pairs + team.lane; i < dim; i += Team::kSize) {
    largest = larger(largest, packed.lacking(i, cache.read(i)));
  }
  const float scale =
      scale_of_head(team.max(largest), kind.packed_codec == KvCodec::kQ8 ? 127.0F : 448.0F);
  for (std::uint32_t pair = team.lane; pair < pairs; pair += Team::kSize) {
    const TurnedPair turned = turned_pair(m, kind, cache, packed, pair, place.position);
    write_scaled(kind.packed_codec, turned.x, scale, packed.element(turned.ix));
    write_scaled(kind.packed_codec, turned.y, scale, packed.element(turned.iy));
  }
  for (std::uint32_t i = 2 * pairs + team.lane; i < dim; i += Team::kSize) {
    write_scaled(kind.packed_codec, packed.lacking(i, cache.read(i)), scale, packed.element(i));
  }
  if (team.lane == 0) {
    std::byte* to = (keys ? place.k_scales : place.v_scales) + in_layer + head * sizeof(float);
    write_one(KvCodec::kF32, scale, to);
  }
}

}  // namespace inferscale::cuda
