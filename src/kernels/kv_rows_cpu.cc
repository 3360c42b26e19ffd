#include <cstring>
#include <type_traits>

#include "kernels/kv_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_rows_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::HWY_NAMESPACE {

// A head's row is too short for a call of memcpy each.
HWY_INLINE void copy_run(const std::byte* from, std::byte* to, std::size_t bytes) {
  constexpr std::size_t kShort = 512;
  if (bytes > kShort) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= bytes; i += lanes) {
    hn::StoreU(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from + i)), d,
               reinterpret_cast<std::uint8_t*>(to + i));
  }
#endif
  if (i < bytes) {
    std::memcpy(to + i, from + i, bytes - i);
  }
}

template <class S, class D>
HWY_INLINE void convert_run(const std::byte* from, std::byte* to, std::size_t count) {
  if constexpr (std::is_same_v<S, D>) {
    copy_run(from, to, count * S::kBytes);
  } else {
    std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::ScalableTag<float> d;
    const std::size_t lanes = hn::Lanes(d);
    for (; i + lanes <= count; i += lanes) {
      store_lanes(D(), d, load_lanes(S(), d, from + i * S::kBytes), to + i * D::kBytes);
    }
#endif
    for (; i < count; ++i) {
      D::store_one(S::load_one(from + i * S::kBytes), to + i * D::kBytes);
    }
  }
}

// Pair i is (i, i + n), n = rotary_dim / 2; coefficient i belongs to pair i.
template <class S, class D>
HWY_INLINE void rotate_halves(const std::byte* from, std::byte* to, const float* cos,
                              const float* sin, std::size_t rotary_dim) {
  const std::size_t n = rotary_dim / 2;
  const std::byte* from_y = from + n * S::kBytes;
  std::byte* to_y = to + n * D::kBytes;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= n; i += lanes) {
    const auto x = load_lanes(S(), d, from + i * S::kBytes);
    const auto y = load_lanes(S(), d, from_y + i * S::kBytes);
    const auto c = hn::LoadU(d, cos + i);
    const auto s = hn::LoadU(d, sin + i);
    store_lanes(D(), d, hn::NegMulAdd(y, s, hn::Mul(x, c)), to + i * D::kBytes);
    store_lanes(D(), d, hn::MulAdd(x, s, hn::Mul(y, c)), to_y + i * D::kBytes);
  }
#endif
  for (; i < n; ++i) {
    const float x = S::load_one(from + i * S::kBytes);
    const float y = S::load_one(from_y + i * S::kBytes);
    D::store_one(x * cos[i] - y * sin[i], to + i * D::kBytes);
    D::store_one(y * cos[i] + x * sin[i], to_y + i * D::kBytes);
  }
}

// Pair i is (2i, 2i + 1). The coefficients are laid out per element, cos as (c, c) and sin as
// (-s, s): then a rotation is v * cos + swapped(v) * sin, without taking pairs apart.
template <class S, class D>
HWY_INLINE void rotate_adjacent(const std::byte* from, std::byte* to, const float* cos,
                                const float* sin, std::size_t rotary_dim) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= rotary_dim; i += lanes) {
    const auto v = load_lanes(S(), d, from + i * S::kBytes);
    const auto c = hn::LoadU(d, cos + i);
    const auto s = hn::LoadU(d, sin + i);
    store_lanes(D(), d, hn::MulAdd(hn::Reverse2(d, v), s, hn::Mul(v, c)), to + i * D::kBytes);
  }
#endif
  for (; i < rotary_dim; i += 2) {
    const float x = S::load_one(from + i * S::kBytes);
    const float y = S::load_one(from + (i + 1) * S::kBytes);
    D::store_one(x * cos[i] + y * sin[i], to + i * D::kBytes);
    D::store_one(y * cos[i + 1] + x * sin[i + 1], to + (i + 1) * D::kBytes);
  }
}

template <class S, class D>
void convert_rows_of(const RowMove& move) {
  for (std::size_t t = 0; t < move.n_tokens; ++t) {
    const std::byte* from = move.source.token(t);
    std::byte* to = move.target.token(t);
    for (std::size_t h = 0; h < move.n_heads; ++h) {
      convert_run<S, D>(from, to, move.head_dim);
      from += move.source.head_stride;
      to += move.target.head_stride;
    }
  }
}

template <class S, class D, bool kAdjacent>
void rotate_rows_of(const RowMove& move, const Rotation& rotation) {
  const std::size_t rotary_dim = rotation.rotary_dim;
  const std::size_t rest = move.head_dim - rotary_dim;
  for (std::size_t t = 0; t < move.n_tokens; ++t) {
    const std::byte* from = move.source.token(t);
    std::byte* to = move.target.token(t);
    const float* cos = rotation.cos + t * rotation.stride;
    const float* sin = rotation.sin + t * rotation.stride;
    for (std::size_t h = 0; h < move.n_heads; ++h) {
      if constexpr (kAdjacent) {
        rotate_adjacent<S, D>(from, to, cos, sin, rotary_dim);
      } else {
        rotate_halves<S, D>(from, to, cos, sin, rotary_dim);
      }
      if (rest > 0) {
        convert_run<S, D>(from + rotary_dim * S::kBytes, to + rotary_dim * D::kBytes, rest);
      }
      from += move.source.head_stride;
      to += move.target.head_stride;
    }
  }
}

template <class Visit>
void with_element(KvCodec codec, const Visit& visit) {
  switch (codec) {
    case KvCodec::kF16:
      return visit(F16());
    case KvCodec::kF32:
      return visit(F32());
    case KvCodec::kBf16:
      return visit(Bf16());
  }
}

// Calls `visit` with the two element types.
template <class Visit>
void with_elements(const RowMove& move, const Visit& visit) {
  with_element(move.source_codec, [&](auto source) {
    with_element(move.target_codec, [&](auto target) { visit(source, target); });
  });
}

void convert_rows_target(const RowMove& move) {
  with_elements(move, [&](auto source, auto target) {
    convert_rows_of<decltype(source), decltype(target)>(move);
  });
}

void rotate_rows_target(const RowMove& move, const Rotation& rotation) {
  with_elements(move, [&](auto source, auto target) {
    using S = decltype(source);
    using D = decltype(target);
    if (rotation.pairing == RopePairing::kAdjacent) {
      rotate_rows_of<S, D, true>(move, rotation);
    } else {
      rotate_rows_of<S, D, false>(move, rotation);
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace inferscale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inferscale::kernels {
namespace {

HWY_EXPORT(convert_rows_target);
HWY_EXPORT(rotate_rows_target);

// Joins heads that follow one another on both sides, then rows that do, so that an unpadded layout
// is moved in one run.
RowMove joined(RowMove move) {
  const std::size_t source_bytes = codec_element_bytes(move.source_codec);
  const std::size_t target_bytes = codec_element_bytes(move.target_codec);
  const bool heads_follow = move.source.head_stride == move.head_dim * source_bytes &&
                            move.target.head_stride == move.head_dim * target_bytes;
  if (heads_follow || move.n_heads == 1) {
    move.head_dim *= move.n_heads;
    move.n_heads = 1;
    const bool rows_follow = move.source.offsets == nullptr && move.target.offsets == nullptr &&
                             move.source.row_stride == move.head_dim * source_bytes &&
                             move.target.row_stride == move.head_dim * target_bytes;
    if (rows_follow) {
      move.head_dim *= move.n_tokens;
      move.n_tokens = 1;
    }
  }
  return move;
}

}  // namespace

void convert_rows(const RowMove& move) {
  if (move.n_tokens > 0) {
    HWY_DYNAMIC_DISPATCH(convert_rows_target)(joined(move));
  }
}

void rotate_rows(const RowMove& move, const Rotation& rotation) {
  HWY_DYNAMIC_DISPATCH(rotate_rows_target)(move, rotation);
}

}  // namespace inferscale::kernels
#endif  // HWY_ONCE
