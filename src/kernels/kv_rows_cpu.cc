#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/kv_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_rows_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/elements-inl.h"
#include "kernels/q4-inl.h"

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
HWY_INLINE void convert_run(S source, const std::byte* from, std::byte* to, std::size_t count) {
  if constexpr (std::is_same_v<S, D>) {
    (void)source;
    copy_run(from, to, count * S::kBytes);
  } else {
    std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::ScalableTag<float> d;
    const std::size_t lanes = hn::Lanes(d);
    for (; i + lanes <= count; i += lanes) {
      store_lanes(D(), d, load_lanes(source, d, from + i * S::kBytes), to + i * D::kBytes);
    }
#endif
    for (; i < count; ++i) {
      D::store_one(source.load_one(from + i * S::kBytes), to + i * D::kBytes);
    }
  }
}

// Pair i is (i, i + n), n = rotary_dim / 2; coefficient i belongs to pair i.
template <class S, class D>
HWY_INLINE void rotate_halves(S source, const std::byte* from, std::byte* to, const float* cos,
                              const float* sin, std::size_t rotary_dim) {
  const std::size_t n = rotary_dim / 2;
  const std::byte* from_y = from + n * S::kBytes;
  std::byte* to_y = to + n * D::kBytes;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= n; i += lanes) {
    const auto x = load_lanes(source, d, from + i * S::kBytes);
    const auto y = load_lanes(source, d, from_y + i * S::kBytes);
    const auto c = hn::LoadU(d, cos + i);
    const auto s = hn::LoadU(d, sin + i);
    store_lanes(D(), d, hn::NegMulAdd(y, s, hn::Mul(x, c)), to + i * D::kBytes);
    store_lanes(D(), d, hn::MulAdd(x, s, hn::Mul(y, c)), to_y + i * D::kBytes);
  }
#endif
  for (; i < n; ++i) {
    const float x = source.load_one(from + i * S::kBytes);
    const float y = source.load_one(from_y + i * S::kBytes);
    D::store_one(x * cos[i] - y * sin[i], to + i * D::kBytes);
    D::store_one(y * cos[i] + x * sin[i], to_y + i * D::kBytes);
  }
}

// Pair i is (2i, 2i + 1). The coefficients are laid out per element, cos as (c, c) and sin as
// (-s, s): then a rotation is v * cos + swapped(v) * sin, without taking pairs apart.
template <class S, class D>
HWY_INLINE void rotate_adjacent(S source, const std::byte* from, std::byte* to, const float* cos,
                                const float* sin, std::size_t rotary_dim) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= rotary_dim; i += lanes) {
    const auto v = load_lanes(source, d, from + i * S::kBytes);
    const auto c = hn::LoadU(d, cos + i);
    const auto s = hn::LoadU(d, sin + i);
    store_lanes(D(), d, hn::MulAdd(hn::Reverse2(d, v), s, hn::Mul(v, c)), to + i * D::kBytes);
  }
#endif
  for (; i < rotary_dim; i += 2) {
    const float x = source.load_one(from + i * S::kBytes);
    const float y = source.load_one(from + (i + 1) * S::kBytes);
    D::store_one(x * cos[i] + y * sin[i], to + i * D::kBytes);
    D::store_one(y * cos[i + 1] + x * sin[i + 1], to + (i + 1) * D::kBytes);
  }
}

HWY_INLINE std::uint32_t magnitude_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7FFFFFFFU;
}

// The bits of the largest magnitude; a NaN's are larger than an infinity's, and those than all.
HWY_INLINE std::uint32_t largest_magnitude(const float* row, std::size_t count) {
  std::uint32_t largest = 0;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::int32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, 0x7FFFFFFF);
  auto most = hn::Zero(d);
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::LoadU(d, reinterpret_cast<const std::int32_t*>(row + i));
    most = hn::Max(most, hn::And(bits, mask));
  }
  largest = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, most)));
#endif
  for (; i < count; ++i) {
    largest = std::max(largest, magnitude_bits(row[i]));
  }
  return largest;
}

// A quotient is rounded twice, by the division and to an element; neither can be fused with another
// operation, so every target and the device get the same elements.
template <class Q>
HWY_INLINE void quantise_as(const float* row, std::byte* to, std::size_t count, float scale) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, scale);
  for (; i + lanes <= count; i += lanes) {
    store_quotients(Q(), d, hn::Div(hn::LoadU(d, row + i), by), to + i);
  }
#endif
  for (; i < count; ++i) {
    Q::store_quotient(row[i] / scale, to + i);
  }
}

// `means` as in RowMove, of this head. The row is lost.
HWY_INLINE void quantise_run(KvCodec codec, float* row, std::byte* to, std::size_t count,
                             const std::byte* means, float* scale) {
  if (codec == KvCodec::kQ4) {
    prepare_q4(row, count, means);
  }
  *scale = head_scale(codec, largest_magnitude(row, count));
  if (!(*scale > 0)) {
    std::memset(to, 0, codec == KvCodec::kQ4 ? (count + 1) / 2 : count);
  } else if (codec == KvCodec::kQ8) {
    quantise_as<Q8>(row, to, count, *scale);
  } else if (codec == KvCodec::kQ4) {
    pack_levels(row, count, *scale, to);
  } else {
    quantise_as<E4m3>(row, to, count, *scale);
  }
}

constexpr std::size_t kMaxHead = 1024;  // elements, as KvShape's

HWY_INLINE const std::byte* means_of_head(const std::byte* means, std::size_t head,
                                          std::size_t head_dim) {
  return means == nullptr ? nullptr : means + head * head_dim * F16::kBytes;
}

// Calls `visit` with the element type of a target; a scaled one's is F32, by way of floats.
template <class Visit>
void with_target(KvCodec codec, const Visit& visit) {
  switch (codec) {
    case KvCodec::kF16:
      return visit(F16());
    case KvCodec::kBf16:
      return visit(Bf16());
    case KvCodec::kF32:
    case KvCodec::kQ8:
    case KvCodec::kFp8E4m3:
    case KvCodec::kQ4:
      return visit(F32());
  }
}

// The same of a source; that of kQ4 is F32, by way of floats.
template <class Visit>
void with_source(KvCodec codec, const Visit& visit) {
  switch (codec) {
    case KvCodec::kF16:
      return visit(F16());
    case KvCodec::kF32:
    case KvCodec::kQ4:
      return visit(F32());
    case KvCodec::kBf16:
      return visit(Bf16());
    case KvCodec::kQ8:
      return visit(Q8());
    case KvCodec::kFp8E4m3:
      return visit(E4m3());
  }
}

// `bias` as in RowMove, of all heads; row + bias or row - bias.
template <bool kAdd>
HWY_INLINE void add_bias(const float* bias, std::size_t head, std::size_t head_dim, float* row) {
  if (bias != nullptr) {
    const float* channels = bias + head * head_dim;
    add_channels<kAdd>(F32(), reinterpret_cast<const std::byte*>(channels), row, head_dim);
  }
}

// Head `head` of a token as floats; `index`: of its scale.
void unpack_head(const RowMove& move, std::size_t head, std::size_t index, const std::byte* from,
                 float* row) {
  if (move.source_codec == KvCodec::kQ4) {
    unpack_q4(from, move.head_dim, move.source_scales[index],
              means_of_head(move.source_means, head, move.head_dim), row);
  } else {
    with_source(move.source_codec, [&](auto source) HWY_ATTR {
      if constexpr (requires { source.scale; }) {
        source.scale = move.source_scales[index];
      }
      convert_run<decltype(source), F32>(source, from, reinterpret_cast<std::byte*>(row),
                                         move.head_dim);
    });
  }
  add_bias<true>(move.source_bias, head, move.head_dim, row);
}

// The reverse. The row is lost.
void pack_head(const RowMove& move, std::size_t head, std::size_t index, float* row,
               std::byte* to) {
  add_bias<false>(move.target_bias, head, move.head_dim, row);
  if (codec_is_scaled(move.target_codec)) {
    quantise_run(move.target_codec, row, to, move.head_dim,
                 means_of_head(move.target_means, head, move.head_dim), move.target_scales + index);
    return;
  }
  with_target(move.target_codec, [&](auto target) HWY_ATTR {
    convert_run<F32, decltype(target)>(F32(), reinterpret_cast<const std::byte*>(row), to,
                                       move.head_dim);
  });
}

// Whether heads go by way of a row of floats before they are moved, and after.
HWY_INLINE bool unpacks(const RowMove& move) {
  return move.source_codec == KvCodec::kQ4 || move.source_bias != nullptr;
}

HWY_INLINE bool packs(const RowMove& move) {
  return codec_is_scaled(move.target_codec) || move.target_bias != nullptr;
}

// Calls `visit` with the source's element and both places of every head.
template <class S, class Visit>
HWY_INLINE void for_heads(const RowMove& move, const Visit& visit) {
  HWY_ALIGN float row[kMaxHead];
  HWY_ALIGN float unpacked[kMaxHead];
  const bool before = std::is_same_v<S, F32> && unpacks(move);
  const bool after = packs(move);
  S source;
  for (std::size_t t = 0; t < move.n_tokens; ++t) {
    const std::byte* from = move.source.token(t);
    std::byte* to = move.target.token(t);
    for (std::size_t h = 0; h < move.n_heads; ++h) {
      const std::size_t head = t * move.n_heads + h;
      if constexpr (requires { source.scale; }) {
        source.scale = move.source_scales[head];
      }
      const std::byte* elements = from;
      if (before) {
        unpack_head(move, h, head, from, unpacked);
        elements = reinterpret_cast<const std::byte*>(unpacked);
      }
      if (after) {
        visit(source, t, elements, reinterpret_cast<std::byte*>(row));
        pack_head(move, h, head, row, to);
      } else {
        visit(source, t, elements, to);
      }
      from += move.source.head_stride;
      to += move.target.head_stride;
    }
  }
}

template <class S, class D>
void convert_rows_of(const RowMove& move) {
  for_heads<S>(move, [&](S source, std::size_t /*t*/, const std::byte* from, std::byte* to)
                         HWY_ATTR { convert_run<S, D>(source, from, to, move.head_dim); });
}

template <class S, class D, bool kAdjacent>
void rotate_rows_of(const RowMove& move, const Rotation& rotation) {
  const std::size_t rotary_dim = rotation.rotary_dim;
  const std::size_t rest = move.head_dim - rotary_dim;
  for_heads<S>(move, [&](S source, std::size_t t, const std::byte* from, std::byte* to) HWY_ATTR {
    const float* cos = rotation.cos + t * rotation.stride;
    const float* sin = rotation.sin + t * rotation.stride;
    if constexpr (kAdjacent) {
      rotate_adjacent<S, D>(source, from, to, cos, sin, rotary_dim);
    } else {
      rotate_halves<S, D>(source, from, to, cos, sin, rotary_dim);
    }
    if (rest > 0) {
      convert_run<S, D>(source, from + rotary_dim * S::kBytes, to + rotary_dim * D::kBytes, rest);
    }
  });
}

// Calls `visit` with the two element types that heads have as they are moved.
template <class Visit>
void with_elements(const RowMove& move, const Visit& visit) {
  with_target(packs(move) ? KvCodec::kF32 : move.target_codec, [&](auto target) {
    with_source(unpacks(move) ? KvCodec::kF32 : move.source_codec,
                [&](auto source) { visit(source, target); });
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
  if (codec_is_scaled(move.source_codec) || codec_is_scaled(move.target_codec) ||
      move.source_bias != nullptr || move.target_bias != nullptr) {
    return move;  // heads have scales or channels of their own
  }
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
