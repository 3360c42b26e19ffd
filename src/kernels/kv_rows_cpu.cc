#include <cstring>

#include "kernels/kv_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_rows_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/f16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::HWY_NAMESPACE {

template <class S, class D>
HWY_INLINE void convert_run(const std::byte* from, std::byte* to, std::size_t count) {
  if constexpr (S::kBytes == D::kBytes) {
    std::memcpy(to, from, count * S::kBytes);
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
      from += move.source.strides.head;
      to += move.target.strides.head;
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
      from += move.source.strides.head;
      to += move.target.strides.head;
    }
  }
}

template <class S, class D>
void rotate_rows_paired(const RowMove& move, const Rotation& rotation) {
  if (rotation.pairing == RopePairing::kAdjacent) {
    rotate_rows_of<S, D, true>(move, rotation);
  } else {
    rotate_rows_of<S, D, false>(move, rotation);
  }
}

void convert_rows_target(const RowMove& move) {
  const bool wide_source = move.source_codec == KvCodec::kF32;
  const bool wide_target = move.target_codec == KvCodec::kF32;
  if (wide_source) {
    wide_target ? convert_rows_of<F32, F32>(move) : convert_rows_of<F32, F16>(move);
  } else {
    wide_target ? convert_rows_of<F16, F32>(move) : convert_rows_of<F16, F16>(move);
  }
}

void rotate_rows_target(const RowMove& move, const Rotation& rotation) {
  const bool wide_source = move.source_codec == KvCodec::kF32;
  const bool wide_target = move.target_codec == KvCodec::kF32;
  if (wide_source) {
    wide_target ? rotate_rows_paired<F32, F32>(move, rotation)
                : rotate_rows_paired<F32, F16>(move, rotation);
  } else {
    wide_target ? rotate_rows_paired<F16, F32>(move, rotation)
                : rotate_rows_paired<F16, F16>(move, rotation);
  }
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
  const bool heads_follow = move.source.strides.head == move.head_dim * source_bytes &&
                            move.target.strides.head == move.head_dim * target_bytes;
  if (heads_follow || move.n_heads == 1) {
    move.head_dim *= move.n_heads;
    move.n_heads = 1;
    const bool rows_follow = move.source.rows == nullptr && move.target.rows == nullptr &&
                             move.source.rows_per_block == 0 && move.target.rows_per_block == 0 &&
                             move.source.strides.row == move.head_dim * source_bytes &&
                             move.target.strides.row == move.head_dim * target_bytes;
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
