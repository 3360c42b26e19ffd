#pragma once

#include "kernels/cuda/row_share.cuh"

// A thread's share of a move, an element or a pair at a time: for shapes and addresses that do not
// allow more.
namespace inferscale::cuda {

INFERSCALE_HD bool scaled(KvCodec codec) {
  return codec == KvCodec::kQ8 || codec == KvCodec::kFp8E4m3;
}

// One element at a time, at any address; of a scaled codec what its scale is multiplied with.
INFERSCALE_HD std::uint32_t bytes_of(KvCodec codec) {
  return codec == KvCodec::kF32 ? 4 : scaled(codec) ? 1 : 2;
}

INFERSCALE_HD float read_one(KvCodec codec, const std::byte* from) {
  if (codec == KvCodec::kF32) {
    float value;
    memcpy(&value, from, sizeof(value));
    return value;
  }
  if (codec == KvCodec::kQ8) {
    return Q8Element::load(static_cast<std::uint8_t>(*from));
  }
  if (codec == KvCodec::kFp8E4m3) {
    return E4m3Element::load(static_cast<std::uint8_t>(*from));
  }
  std::uint16_t bits;
  memcpy(&bits, from, sizeof(bits));
  return codec == KvCodec::kF16 ? HalfElement::load(bits) : Bfloat16Element::load(bits);
}

INFERSCALE_HD void write_one(KvCodec codec, float value, std::byte* to) {
  if (codec == KvCodec::kF32) {
    memcpy(to, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits =
      codec == KvCodec::kF16 ? HalfElement::store(value) : Bfloat16Element::store(value);
  memcpy(to, &bits, sizeof(bits));
}

// A head on one side; `scale` is 1 where elements have none, `bias` null or what they lack.
struct HeadSide {
  KvCodec codec;
  std::byte* at;
  float scale;
  const float* bias;

  [[nodiscard]] INFERSCALE_HD std::byte* element(std::uint32_t i) const {
    return at + i * bytes_of(codec);
  }
  [[nodiscard]] INFERSCALE_HD float read(std::uint32_t i) const {
    const float value = times(read_one(codec, element(i)), scale);
    return bias == nullptr ? value : plus(value, bias[i]);
  }
  // `value` as it is kept here.
  [[nodiscard]] INFERSCALE_HD float lacking(std::uint32_t i, float value) const {
    return bias == nullptr ? value : plus(value, -bias[i]);
  }
};

INFERSCALE_HD float scale_at(KvCodec codec, const std::byte* from) {
  return scaled(codec) ? read_one(KvCodec::kF32, from) : 1.0F;
}

INFERSCALE_HD void copy_one(const HeadSide& from, const HeadSide& to, std::uint32_t i) {
  if (from.codec == to.codec && from.bias == to.bias) {
    for (std::uint32_t byte = 0; byte < bytes_of(from.codec); ++byte) {
      to.element(i)[byte] = from.element(i)[byte];
    }
  } else {
    write_one(to.codec, to.lacking(i, from.read(i)), to.element(i));
  }
}

// Pair `pair` of a head of K, turned to its position or back, as it is kept in `to`; and which
// elements it is.
struct TurnedPair {
  std::uint32_t ix;
  std::uint32_t iy;
  float x;
  float y;
};

INFERSCALE_HD TurnedPair turned_pair(const RowMoves& m, const MoveKind& kind, const HeadSide& from,
                                     const HeadSide& to, std::uint32_t pair,
                                     std::uint32_t position) {
  const bool adjacent = kind.pairing == RopePairing::kAdjacent;
  TurnedPair out;
  out.ix = adjacent ? 2 * pair : pair;
  out.iy = adjacent ? out.ix + 1 : pair + m.pairs;
  float c = m.cos[std::size_t{position} * m.pairs + pair];
  float s = m.sin[std::size_t{position} * m.pairs + pair];
  if (kind.capture) {
    inverted(&c, &s);
  }
  const float x = from.read(out.ix);
  const float y = from.read(out.iy);
  out.x = to.lacking(out.ix, times_add(-y, s, times(x, c)));
  out.y = to.lacking(out.iy, times_add(x, s, times(y, c)));
  return out;
}

// Unit `unit` of a head of K: a pair, or an element behind the pairs.
INFERSCALE_HD void move_k_narrow(const RowMoves& m, const MoveKind& kind, const HeadSide& from,
                                 const HeadSide& to, std::uint32_t unit, std::uint32_t position) {
  if (unit >= m.pairs) {
    copy_one(from, to, unit + m.pairs);
    return;
  }
  const TurnedPair pair = turned_pair(m, kind, from, to, unit, position);
  write_one(to.codec, pair.x, to.element(pair.ix));
  write_one(to.codec, pair.y, to.element(pair.iy));
}

// The share of one thread, an element or a pair at a time.
template <bool kCapture, bool kBiased>
INFERSCALE_HD void move_narrow(const RowMoves& m, const MoveKind& kind, std::uint32_t thread) {
  const Share share = share_of(m, thread);
  if (!share.some) {
    return;
  }
  const MoveToken token = m.tokens[share.token];
  const Part k_part = part_of(share.unit, m.k_units, m.n_heads);
  const Part v_part = part_of(share.unit, m.v_units, m.n_heads);
  const PackedPlace place = packed_place<kCapture>(m, token, share.token);
  const std::uint32_t element = bytes_of(kind.packed_codec);
  for (std::uint32_t layer = share.first_layer; layer < share.end_layer; ++layer) {
    const std::uint64_t in_layer = layer * place.layer_bytes;
    if (k_part.some) {
      const HeadSide cache{
          kind.cache_codec,
          m.layers[layer] + row_offset(m.k, m.rows_per_block, token.row) + k_part.head * m.k.head,
          1.0F, nullptr};
      const HeadSide packed{
          kind.packed_codec, place.k + in_layer + std::size_t{k_part.head} * m.dim_k * element,
          scale_at(kind.packed_codec, place.k_scales + in_layer + k_part.head * sizeof(float)),
          bias_of<kBiased>(m, layer, k_part.head)};
      move_k_narrow(m, kind, kCapture ? cache : packed, kCapture ? packed : cache, k_part.unit,
                    place.position);
    }
    if (v_part.some) {
      const HeadSide cache{kind.cache_codec,
                           m.layers[m.n_layers + layer] +
                               row_offset(m.v, m.rows_per_block, token.row) +
                               v_part.head * m.v.head,
                           1.0F, nullptr};
      const HeadSide packed{
          kind.packed_codec, place.v + in_layer + std::size_t{v_part.head} * m.dim_v * element,
          scale_at(kind.packed_codec, place.v_scales + in_layer + v_part.head * sizeof(float)),
          nullptr};
      copy_one(kCapture ? cache : packed, kCapture ? packed : cache, v_part.unit);
    }
  }
}

}  // namespace inferscale::cuda
