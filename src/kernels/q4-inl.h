// Heads of KvCodec::kQ4 as rows of floats and back, once per Highway target: docs/format.md. All
// steps but sums are exact (signs, powers of two, products of a level and a scale), and sums are
// made in one order, so every target gives the same floats and the same bytes. No include guard of
// the usual kind: Highway includes this once for every target.
#if defined(INFERSCALE_KERNELS_Q4_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef INFERSCALE_KERNELS_Q4_INL_H
#undef INFERSCALE_KERNELS_Q4_INL_H
#else
#define INFERSCALE_KERNELS_Q4_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/elements-inl.h"
#include "kernels/quantized.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// The two narrowest stages of the transform, within four lanes: sums in the lower places,
// differences in the upper ones.
HWY_INLINE void transform_fours(float* row, std::size_t count) {
  const hn::FixedTag<float, 4> d;
  HWY_ALIGN static constexpr float kOdd[4] = {1, -1, 1, -1};
  HWY_ALIGN static constexpr float kUpper[4] = {1, 1, -1, -1};
  const auto odd = hn::Load(d, kOdd);
  const auto upper = hn::Load(d, kUpper);
  for (std::size_t i = 0; i < count; i += 4) {
    const auto v = hn::LoadU(d, row + i);
    const auto pairs = hn::Add(hn::Reverse2(d, v), hn::Mul(v, odd));
    hn::StoreU(hn::Add(hn::Shuffle1032(pairs), hn::Mul(pairs, upper)), d, row + i);
  }
}

// One stage: elements i and i + half of each 2 * half become their sum and their difference.
template <class D>
HWY_INLINE void transform_stage(D d, float* row, std::size_t count, std::size_t half) {
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t begin = 0; begin < count; begin += 2 * half) {
    for (std::size_t i = begin; i < begin + half; i += lanes) {
      const auto a = hn::LoadU(d, row + i);
      const auto b = hn::LoadU(d, row + i + half);
      hn::StoreU(hn::Add(a, b), d, row + i);
      hn::StoreU(hn::Sub(a, b), d, row + i + half);
    }
  }
}
#endif

// The Walsh-Hadamard transform of each block of the row, without a factor: twice gives the row
// times the block. REQUIRES: block is a power of two that divides count.
HWY_INLINE void transform(float* row, std::size_t count, std::size_t block) {
  std::size_t half = 1;
#if HWY_TARGET != HWY_SCALAR
  if (block >= 4) {
    transform_fours(row, count);
    half = 4;
    const hn::ScalableTag<float> wide;
    for (; half < block && half < hn::Lanes(wide); half *= 2) {
      transform_stage(hn::FixedTag<float, 4>(), row, count, half);
    }
    for (; half < block; half *= 2) {
      transform_stage(wide, row, count, half);
    }
    return;
  }
#endif
  for (; half < block; half *= 2) {
    for (std::size_t i = 0; i < count; ++i) {
      if ((i & half) == 0) {
        const float a = row[i];
        const float b = row[i + half];
        row[i] = a + b;
        row[i + half] = a - b;
      }
    }
  }
}

HWY_INLINE float level_of(std::byte nibble, float scale) {
  return (static_cast<float>(static_cast<std::uint8_t>(nibble)) - 7.5F) * scale;
}

// Two levels of each byte, the lower four bits first.
HWY_INLINE void unpack_levels(const std::byte* from, std::size_t count, float scale, float* row) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  const auto middle = hn::Set(d, 7.5F);
  const auto by = hn::Set(d, scale);
  const auto store = [&](auto levels, float* to) HWY_ATTR {
    const auto values = hn::ConvertTo(d, hn::PromoteTo(di, levels));
    hn::StoreU(hn::Mul(hn::Sub(values, middle), by), d, to);
  };
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto both = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from + i / 2));
    const auto low = hn::And(both, hn::Set(d8, 15));
    const auto high = hn::And(hn::ShiftRight<4>(both), hn::Set(d8, 15));
    store(hn::InterleaveLower(d8, low, high), row + i);
    store(hn::InterleaveUpper(d8, low, high), row + i + lanes);
  }
#endif
  for (; i < count; ++i) {
    const std::byte both = from[i / 2];
    row[i] = level_of(i % 2 == 0 ? both & std::byte{15} : both >> 4, scale);
  }
}

// The floats of a head. `means`: of its channels, null of a value.
HWY_INLINE void unpack_q4(const std::byte* from, std::size_t count, float scale,
                          const std::byte* means, float* row) {
  if (scale == 0) {
    std::memset(row, 0, count * sizeof(float));
  } else {
    unpack_levels(from, count, scale, row);
    transform(row, count, transform_block(count));
  }
  if (means != nullptr) {
    add_channels<true>(F16(), means, row, count);
  }
}

// What unpack_q4 needs of the row once its mean is taken away: divided by its block, so that no
// sum overflows, and transformed.
HWY_INLINE void prepare_q4(float* row, std::size_t count, const std::byte* means) {
  if (means != nullptr) {
    add_channels<false>(F16(), means, row, count);
  }
  const std::size_t block = transform_block(count);
  const float part = 1.0F / static_cast<float>(block);
  for (std::size_t i = 0; i < count; ++i) {
    row[i] *= part;
  }
  transform(row, count, block);
}

// Each element to the level whose interval it is in. REQUIRES: scale > 0, no magnitude above
// 8 * scale.
HWY_INLINE void pack_levels(const float* row, std::size_t count, float scale, std::byte* to) {
  const auto level = [&](std::size_t i) {
    return static_cast<std::byte>(std::min(static_cast<int>(row[i] / scale + 8.0F), 15));
  };
  for (std::size_t i = 0; i + 1 < count; i += 2) {
    to[i / 2] = level(i) | level(i + 1) << 4;
  }
  if (count % 2 == 1) {
    to[count / 2] = level(count - 1);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace inferscale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
