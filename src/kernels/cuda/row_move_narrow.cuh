#pragma once

#include "kernels/cuda/row_share.cuh"

// A thread's share of a move, an element or a pair at a time: for shapes and addresses that do not
// allow more.
namespace inferscale::cuda {

// One element at a time, at any address.
INFERSCALE_HD std::uint32_t bytes_of(KvCodec codec) { return codec == KvCodec::kF32 ? 4 : 2; }

INFERSCALE_HD float read_one(KvCodec codec, const std::byte* from) {
  if (codec == KvCodec::kF32) {
    float value;
    memcpy(&value, from, sizeof(value));
    return value;
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

INFERSCALE_HD void copy_one(KvCodec from_codec, const std::byte* from, KvCodec to_codec,
                            std::byte* to) {
  if (from_codec == to_codec) {
    for (std::uint32_t i = 0; i < bytes_of(from_codec); ++i) {
      to[i] = from[i];
    }
  } else {
    write_one(to_codec, read_one(from_codec, from), to);
  }
}

struct HeadMove {
  KvCodec from_codec;
  KvCodec to_codec;
  const std::byte* from;
  std::byte* to;
};

// Unit `unit` of a head of K: a pair, or an element behind the pairs.
INFERSCALE_HD void move_k_narrow(const RowMoves& m, const MoveKind& kind, const HeadMove& head,
                                 std::uint32_t unit, std::uint32_t position) {
  const std::uint32_t from_bytes = bytes_of(head.from_codec);
  const std::uint32_t to_bytes = bytes_of(head.to_codec);
  if (unit >= m.pairs) {
    const std::uint32_t i = unit + m.pairs;
    copy_one(head.from_codec, head.from + i * from_bytes, head.to_codec, head.to + i * to_bytes);
    return;
  }
  const bool adjacent = kind.pairing == RopePairing::kAdjacent;
  const std::uint32_t ix = adjacent ? 2 * unit : unit;
  const std::uint32_t iy = adjacent ? ix + 1 : unit + m.pairs;
  float c = m.cos[std::size_t{position} * m.pairs + unit];
  float s = m.sin[std::size_t{position} * m.pairs + unit];
  if (kind.capture) {
    inverted(&c, &s);
  }
  const float x = read_one(head.from_codec, head.from + ix * from_bytes);
  const float y = read_one(head.from_codec, head.from + iy * from_bytes);
  write_one(head.to_codec, times_add(-y, s, times(x, c)), head.to + ix * to_bytes);
  write_one(head.to_codec, times_add(x, s, times(y, c)), head.to + iy * to_bytes);
}

// The share of one thread, an element or a pair at a time.
template <bool kCapture>
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
    if (k_part.some) {
      std::byte* cache =
          m.layers[layer] + row_offset(m.k, m.rows_per_block, token.row) + k_part.head * m.k.head;
      std::byte* packed =
          place.k + layer * place.layer_bytes + std::size_t{k_part.head} * m.dim_k * element;
      const HeadMove head = kCapture ? HeadMove{kind.cache_codec, kind.packed_codec, cache, packed}
                                     : HeadMove{kind.packed_codec, kind.cache_codec, packed, cache};
      move_k_narrow(m, kind, head, k_part.unit, place.position);
    }
    if (v_part.some) {
      std::byte* cache = m.layers[m.n_layers + layer] +
                         row_offset(m.v, m.rows_per_block, token.row) + v_part.head * m.v.head;
      std::byte* packed =
          place.v + layer * place.layer_bytes + std::size_t{v_part.head} * m.dim_v * element;
      const std::uint32_t i = v_part.unit;
      if (kCapture) {
        copy_one(kind.cache_codec, cache + i * bytes_of(kind.cache_codec), kind.packed_codec,
                 packed + i * element);
      } else {
        copy_one(kind.packed_codec, packed + i * element, kind.cache_codec,
                 cache + i * bytes_of(kind.cache_codec));
      }
    }
  }
}

}  // namespace inferscale::cuda
