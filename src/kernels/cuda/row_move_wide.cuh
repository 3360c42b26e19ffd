#pragma once

#include "kernels/cuda/row_share.cuh"

// A thread's share of a move, 16 bytes at a time.
namespace inferscale::cuda {

// The coefficients of the eight pairs that a thread turns, of one token: c and s, or for the way
// back c / (c^2 + s^2) and -s / (c^2 + s^2), in double as on the host.
struct Coefficients {
  float c[8];
  float s[8];
};

// Pairs first .. first + 3 and second .. second + 3 of a position.
template <bool kCapture>
INFERSCALE_HD Coefficients coefficients(const RowMoves& m, std::uint32_t position,
                                        std::uint32_t first, std::uint32_t second) {
  const std::size_t at = std::size_t{position} * m.pairs;
  Coefficients out;
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::size_t pair = at + (i < 4 ? first + i : second + i - 4);
    out.c[i] = m.cos[pair];
    out.s[i] = m.sin[pair];
    if (kCapture) {
      inverted(&out.c[i], &out.s[i]);
    }
  }
  return out;
}

// Halves: a holds the first elements of eight pairs, b the second ones. Adjacent: a holds four
// whole pairs, b four others.
template <bool kAdjacent>
INFERSCALE_HD void turn(const Coefficients& q, float* a, float* b) {
  if constexpr (kAdjacent) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      float* pair = (i < 4 ? a : b) + 2 * (i % 4);
      const float x = pair[0];
      const float y = pair[1];
      pair[0] = times_add(y, -q.s[i], times(x, q.c[i]));
      pair[1] = times_add(x, q.s[i], times(y, q.c[i]));
    }
  } else {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const float x = a[i];
      const float y = b[i];
      a[i] = times_add(-y, q.s[i], times(x, q.c[i]));
      b[i] = times_add(x, q.s[i], times(y, q.c[i]));
    }
  }
}

// What a thread moves of K or V of one layer: chunk a of eight elements and, if there is one, b.
struct Chunks {
  std::uint32_t a;
  std::uint32_t b;
  bool some;
  bool two;
  bool turned;
};

// Chunk p and chunk p + n of 2n or, at the end, 2n - 1 chunks.
INFERSCALE_HD Chunks two_of(std::uint32_t p, std::uint32_t n, std::uint32_t first,
                            std::uint32_t n_chunks) {
  return {first + p, first + p + n, true, first + p + n < n_chunks, false};
}

// Of a head of K: the turned chunks first; 2 * pairs / 8 of them, an even number.
INFERSCALE_HD Chunks k_chunks(const RowMoves& m, const Part& part) {
  const std::uint32_t turned = m.pairs / 8;
  Chunks out = part.unit < turned
                   ? two_of(part.unit, turned, 0, m.dim_k / 8)
                   : two_of(part.unit - turned, m.k_units - turned, 2 * turned, m.dim_k / 8);
  out.turned = part.unit < turned;
  out.some = part.some;
  return out;
}

INFERSCALE_HD Chunks v_chunks(const RowMoves& m, const Part& part) {
  Chunks out = two_of(part.unit, m.v_units, 0, m.dim_v / 8);
  out.some = part.some;
  return out;
}

template <class E>
struct TwoChunks {
  Eight<E> a;
  Eight<E> b;

  // `scale`: of the head, where elements have one.
  INFERSCALE_HD void load(const Chunks& chunks, const std::byte* head, const std::byte* scale) {
    if (chunks.some) {
      if constexpr (E::kScaled) {
        a.scale = b.scale = *reinterpret_cast<const float*>(scale);
      }
      a.load(head + chunks.a * 8 * E::kBytes);
      if (chunks.two) {
        b.load(head + chunks.b * 8 * E::kBytes);
      }
    }
  }
};

template <class S, class D>
INFERSCALE_HD void put(const TwoChunks<S>& from, const Chunks& chunks, std::byte* head) {
  if (chunks.some) {
    converted<S, D>(from.a).store(head + chunks.a * 8 * D::kBytes);
    if (chunks.two) {
      converted<S, D>(from.b).store(head + chunks.b * 8 * D::kBytes);
    }
  }
}

// Adds a bias of eight elements, or takes it away.
template <bool kAdd>
INFERSCALE_HD void add_eight(const float* bias, float* values) {
  Eight<FloatElement> loaded;
  loaded.load(reinterpret_cast<const std::byte*>(bias));
  float channels[8];
  loaded.unpack(channels);
  for (std::uint32_t i = 0; i < 8; ++i) {
    values[i] = plus(values[i], kAdd ? channels[i] : -channels[i]);
  }
}

template <class S, class D, bool kAdjacent>
INFERSCALE_HD void put_turned(const TwoChunks<S>& from, const Chunks& chunks, const Coefficients& q,
                              std::byte* head) {
  if (!chunks.turned) {
    put<S, D>(from, chunks, head);
    return;
  }
  float a[8];
  float b[8];
  from.a.unpack(a);
  from.b.unpack(b);
  turn<kAdjacent>(q, a, b);
  Eight<D> out;
  out.pack(a);
  out.store(head + chunks.a * 8 * D::kBytes);
  out.pack(b);
  out.store(head + chunks.b * 8 * D::kBytes);
}

// The same of keys that have a bias on one side; `bias`: of the head.
template <class S, class D, bool kAdjacent, bool kCapture>
INFERSCALE_HD void put_biased(const TwoChunks<S>& from, const Chunks& chunks, const Coefficients& q,
                              const float* bias, std::byte* head) {
  const std::uint32_t at[2] = {chunks.a * 8, chunks.b * 8};
  float values[2][8] = {};
  from.a.unpack(values[0]);
  if (chunks.two) {
    from.b.unpack(values[1]);
  }
  if constexpr (!kCapture) {
    add_eight<true>(bias + at[0], values[0]);
    if (chunks.two) {
      add_eight<true>(bias + at[1], values[1]);
    }
  }
  if (chunks.turned) {
    turn<kAdjacent>(q, values[0], values[1]);
  }
  for (std::uint32_t i = 0; i < 2; ++i) {
    if (i == 0 || chunks.two) {
      if constexpr (kCapture) {
        add_eight<false>(bias + at[i], values[i]);
      }
      Eight<D> out;
      out.pack(values[i]);
      out.store(head + at[i] * D::kBytes);
    }
  }
}

// The share of one thread, 16 bytes of the cache at a time. P: the packed side's element, C: the
// cache's.
template <class P, class C, bool kAdjacent, bool kCapture, bool kBiased>
INFERSCALE_HD void move_wide(const RowMoves& m, std::uint32_t thread) {
  using S = std::conditional_t<kCapture, C, P>;
  using D = std::conditional_t<kCapture, P, C>;
  const Share share = share_of(m, thread);
  if (!share.some) {
    return;
  }
  const MoveToken token = m.tokens[share.token];
  const Part k_part = part_of(share.unit, m.k_units, m.n_heads);
  const Part v_part = part_of(share.unit, m.v_units, m.n_heads);
  const Chunks k_what = k_chunks(m, k_part);
  const Chunks v_what = v_chunks(m, v_part);
  const PackedPlace place = packed_place<kCapture>(m, token, share.token);
  const std::uint64_t k_cache =
      row_offset(m.k, m.rows_per_block, token.row) + k_part.head * m.k.head;
  const std::uint64_t v_cache =
      row_offset(m.v, m.rows_per_block, token.row) + v_part.head * m.v.head;
  std::byte* k_packed = place.k + std::size_t{k_part.head} * m.dim_k * P::kBytes;
  std::byte* v_packed = place.v + std::size_t{v_part.head} * m.dim_v * P::kBytes;
  const std::byte* k_scale = place.k_scales + k_part.head * sizeof(float);
  const std::byte* v_scale = place.v_scales + v_part.head * sizeof(float);
  Coefficients q{};
  if (k_what.some && k_what.turned) {
    const std::uint32_t first = kAdjacent ? 4 * k_what.a : 8 * k_what.a;
    const std::uint32_t second = kAdjacent ? 4 * k_what.b : first + 4;
    q = coefficients<kCapture>(m, place.position, first, second);
  }
  for (std::uint32_t layer = share.first_layer; layer < share.end_layer; ++layer) {
    std::byte* k_side = m.layers[layer] + k_cache;
    std::byte* v_side = m.layers[m.n_layers + layer] + v_cache;
    std::byte* k_record = k_packed + layer * place.layer_bytes;
    std::byte* v_record = v_packed + layer * place.layer_bytes;
    TwoChunks<S> k;
    TwoChunks<S> v;
    k.load(k_what, kCapture ? k_side : k_record, k_scale + layer * place.layer_bytes);
    v.load(v_what, kCapture ? v_side : v_record, v_scale + layer * place.layer_bytes);
    if (k_what.some) {
      std::byte* to = kCapture ? k_record : k_side;
      if constexpr (kBiased) {
        put_biased<S, D, kAdjacent, kCapture>(k, k_what, q, bias_of<kBiased>(m, layer, k_part.head),
                                              to);
      } else {
        put_turned<S, D, kAdjacent>(k, k_what, q, to);
      }
    }
    put<S, D>(v, v_what, kCapture ? v_record : v_side);
  }
}

}  // namespace inferscale::cuda
