// Vector loads and stores of f16, bf16 and f32 elements as fp32 lanes, once per Highway target.
// No include guard of the usual kind: Highway includes this once for every target.
#if defined(INFERSCALE_KERNELS_ELEMENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef INFERSCALE_KERNELS_ELEMENTS_INL_H
#undef INFERSCALE_KERNELS_ELEMENTS_INL_H
#else
#define INFERSCALE_KERNELS_ELEMENTS_INL_H
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/bf16.h"
#include "kernels/f16.h"
#include "kernels/quantized.h"

// Where Highway emulates the conversions (1.0.3: x86 without F16C, its scalar targets) it truncates
// and turns infinities and NaNs into numbers. Those targets use the conversions below instead.
#undef INFERSCALE_NATIVE_F16
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)) || HWY_ARCH_ARM_A64
#define INFERSCALE_NATIVE_F16 1
#else
#define INFERSCALE_NATIVE_F16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Element types. Memory is addressed as bytes throughout: an engine's rows need not be aligned.
struct F16 {
  static constexpr std::size_t kBytes = 2;
  static HWY_INLINE float load_one(const std::byte* from) {
    std::uint16_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    return float_from_f16(bits);
  }
  static HWY_INLINE void store_one(float value, std::byte* to) {
    const std::uint16_t bits = f16_from_float(value);
    std::memcpy(to, &bits, sizeof(bits));
  }
};

struct Bf16 {
  static constexpr std::size_t kBytes = 2;
  static HWY_INLINE float load_one(const std::byte* from) {
    std::uint16_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    return float_from_bf16(bits);
  }
  static HWY_INLINE void store_one(float value, std::byte* to) {
    const std::uint16_t bits = bf16_from_float(value);
    std::memcpy(to, &bits, sizeof(bits));
  }
};

struct F32 {
  static constexpr std::size_t kBytes = 4;
  static HWY_INLINE float load_one(const std::byte* from) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static HWY_INLINE void store_one(float value, std::byte* to) {
    std::memcpy(to, &value, sizeof(value));
  }
};

/// An int8 that stands for itself times `scale`; store_quotients and store_quotient write it.
struct Q8 {
  static constexpr std::size_t kBytes = 1;
  float scale = 0;
  HWY_INLINE float load_one(const std::byte* from) const {
    return static_cast<float>(static_cast<std::int8_t>(*from)) * scale;
  }
  static HWY_INLINE void store_quotient(float quotient, std::byte* to) {
    const float whole = (quotient + kRounder) - kRounder;
    *to = static_cast<std::byte>(static_cast<std::int8_t>(whole));
  }
};

/// The same of an 8-bit float.
struct E4m3 {
  static constexpr std::size_t kBytes = 1;
  float scale = 0;
  HWY_INLINE float load_one(const std::byte* from) const {
    return float_from_e4m3(static_cast<std::uint8_t>(*from)) * scale;
  }
  static HWY_INLINE void store_quotient(float quotient, std::byte* to) {
    *to = static_cast<std::byte>(e4m3_from_float(quotient));
  }
};

#if HWY_TARGET != HWY_SCALAR  // which has one lane and no reinterpretation between lane sizes

#if !INFERSCALE_NATIVE_F16
// The same steps as float_from_f16, on every lane of `half` (u32, upper 16 bits zero).
template <class DF, class VU>
HWY_INLINE hn::Vec<DF> promote_f16_bits(DF df, VU half) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto magnitude = hn::And(half, hn::Set(du, 0x7FFFU));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000U)));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto small = hn::Mul(hn::ConvertTo(df, signed_magnitude), hn::Set(df, 0x1p-24F));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(du, 112U << 23));
  const auto is_nan = hn::Gt(signed_magnitude, hn::Set(di, 0x7C00));
  const auto quiet = hn::IfThenElseZero(hn::RebindMask(du, is_nan), hn::Set(du, 0x00400000U));
  const auto special = hn::Or(hn::Or(shifted, hn::Set(du, 0x7F800000U)), quiet);
  const auto is_special = hn::Gt(signed_magnitude, hn::Set(di, 0x7BFF));
  const auto is_small = hn::Lt(signed_magnitude, hn::Set(di, 0x0400));
  const auto large = hn::IfThenElse(hn::RebindMask(du, is_special), special, normal);
  const auto bits = hn::IfThenElse(hn::RebindMask(du, is_small), hn::BitCast(du, small), large);
  return hn::BitCast(df, hn::Or(bits, sign));
}

// The same steps as f16_from_float; the result is in the lower 16 bits of each lane.
template <class DF>
HWY_INLINE hn::Vec<hn::RebindToSigned<DF>> demote_f16_bits(DF df, hn::Vec<DF> value) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFU));
  const auto sign = hn::ShiftRight<16>(hn::AndNot(hn::Set(du, 0x7FFFFFFFU), bits));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto shifted = hn::ShiftRight<13>(magnitude);
  const auto payload = hn::Or(hn::And(shifted, hn::Set(du, 0x03FFU)), hn::Set(du, 0x7E00U));
  const auto is_nan = hn::Gt(signed_magnitude, hn::Set(di, 0x7F800000));
  const auto special = hn::IfThenElse(hn::RebindMask(du, is_nan), payload, hn::Set(du, 0x7C00U));
  const auto half_ulp = hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5F));
  const auto small = hn::Sub(hn::BitCast(du, half_ulp), hn::Set(du, 126U << 23));
  const auto odd = hn::And(shifted, hn::Set(du, 1U));
  const auto rebias = hn::Set(du, 0x0FFFU - (112U << 23));  // wraps on purpose
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, rebias), odd));
  const auto is_special = hn::Gt(signed_magnitude, hn::Set(di, (143 << 23) - 1));
  const auto is_small = hn::Lt(signed_magnitude, hn::Set(di, 113 << 23));
  const auto finite = hn::IfThenElse(hn::RebindMask(du, is_small), small, normal);
  const auto half = hn::IfThenElse(hn::RebindMask(du, is_special), special, finite);
  return hn::BitCast(di, hn::Or(half, sign));
}
#endif  // !INFERSCALE_NATIVE_F16

template <class DF>
HWY_INLINE hn::Vec<DF> load_lanes(F16 /* element */, DF df, const std::byte* from) {
  const hn::Rebind<std::uint16_t, DF> du16;
  const hn::Repartition<std::uint8_t, decltype(du16)> du8;
  const auto raw = hn::LoadU(du8, reinterpret_cast<const std::uint8_t*>(from));
#if INFERSCALE_NATIVE_F16
  const hn::Rebind<hwy::float16_t, DF> df16;
  return hn::PromoteTo(df, hn::BitCast(df16, raw));
#else
  const hn::RebindToUnsigned<DF> du;
  return promote_f16_bits(df, hn::PromoteTo(du, hn::BitCast(du16, raw)));
#endif
}

template <class DF>
HWY_INLINE void store_lanes(F16 /* element */, DF df, hn::Vec<DF> value, std::byte* to) {
  const hn::Rebind<std::uint16_t, DF> du16;
  const hn::Repartition<std::uint8_t, decltype(du16)> du8;
#if INFERSCALE_NATIVE_F16
  const hn::Rebind<hwy::float16_t, DF> df16;
  const auto half = hn::DemoteTo(df16, value);
#else
  const auto half = hn::DemoteTo(du16, demote_f16_bits(df, value));
#endif
  (void)df;
  (void)du16;
  hn::StoreU(hn::BitCast(du8, half), du8, reinterpret_cast<std::uint8_t*>(to));
}

template <class DF>
HWY_INLINE hn::Vec<DF> load_lanes(Bf16 /* element */, DF df, const std::byte* from) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<std::uint16_t, DF> du16;
  const hn::Repartition<std::uint8_t, decltype(du16)> du8;
  const auto raw = hn::LoadU(du8, reinterpret_cast<const std::uint8_t*>(from));
  return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::BitCast(du16, raw))));
}

// The same steps as bf16_from_float.
template <class DF>
HWY_INLINE void store_lanes(Bf16 /* element */, DF /* tag */, hn::Vec<DF> value, std::byte* to) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::uint16_t, DF> du16;
  const hn::Repartition<std::uint8_t, decltype(du16)> du8;
  const auto bits = hn::BitCast(du, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFU)), odd));
  const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7FFFFFFFU)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, 0x7F800000)));
  const auto half = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(du, 0x0040U)), rounded);
  const auto narrow = hn::DemoteTo(du16, hn::BitCast(di, half));
  hn::StoreU(hn::BitCast(du8, narrow), du8, reinterpret_cast<std::uint8_t*>(to));
}

template <class DF>
HWY_INLINE hn::Vec<DF> load_lanes(F32 /* element */, DF df, const std::byte* from) {
  const hn::Repartition<std::uint8_t, DF> du8;
  return hn::BitCast(df, hn::LoadU(du8, reinterpret_cast<const std::uint8_t*>(from)));
}

template <class DF>
HWY_INLINE void store_lanes(F32 /* element */, DF df, hn::Vec<DF> value, std::byte* to) {
  const hn::Repartition<std::uint8_t, DF> du8;
  (void)df;
  hn::StoreU(hn::BitCast(du8, value), du8, reinterpret_cast<std::uint8_t*>(to));
}

template <class DF>
HWY_INLINE hn::Vec<DF> load_lanes(Q8 element, DF df, const std::byte* from) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::int8_t, DF> di8;
  const auto raw = hn::LoadU(di8, reinterpret_cast<const std::int8_t*>(from));
  return hn::Mul(hn::ConvertTo(df, hn::PromoteTo(di, raw)), hn::Set(df, element.scale));
}

// The same steps as float_from_e4m3.
template <class DF>
HWY_INLINE hn::Vec<DF> load_lanes(E4m3 element, DF df, const std::byte* from) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::uint8_t, DF> du8;
  const auto raw = hn::PromoteTo(di, hn::LoadU(du8, reinterpret_cast<const std::uint8_t*>(from)));
  const auto magnitude = hn::And(raw, hn::Set(di, 0x7F));
  const auto sign = hn::ShiftLeft<24>(hn::And(raw, hn::Set(di, 0x80)));
  const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(di, 120 << 23));
  const auto small = hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, 0x1p-9F));
  const auto is_small = hn::Lt(magnitude, hn::Set(di, 8));
  const auto bits = hn::IfThenElse(is_small, hn::BitCast(di, small), normal);
  return hn::Mul(hn::BitCast(df, hn::Or(bits, sign)), hn::Set(df, element.scale));
}

// What a scaled codec makes of quotients of values and scale.
template <class DF>
HWY_INLINE void store_quotients(Q8 /* element */, DF df, hn::Vec<DF> quotient, std::byte* to) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::int8_t, DF> di8;
  const auto rounder = hn::Set(df, kRounder);
  const auto whole = hn::Sub(hn::Add(quotient, rounder), rounder);
  hn::StoreU(hn::DemoteTo(di8, hn::ConvertTo(di, whole)), di8, reinterpret_cast<std::int8_t*>(to));
}

// The same steps as e4m3_from_float.
template <class DF>
HWY_INLINE void store_quotients(E4m3 /* element */, DF df, hn::Vec<DF> quotient, std::byte* to) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::uint8_t, DF> du8;
  const auto bits = hn::BitCast(di, quotient);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(di, 0x80));
  const auto rounder = hn::Set(df, kRounder);
  const auto steps = hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 512.0F));
  const auto small = hn::ConvertTo(di, hn::Sub(hn::Add(steps, rounder), rounder));
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(di, 1));
  const auto up = hn::Add(hn::Add(magnitude, hn::Set(di, 0x7FFFF)), odd);
  const auto large =
      hn::Min(hn::Sub(hn::ShiftRight<20>(up), hn::Set(di, 120 << 3)), hn::Set(di, 0x7E));
  const auto is_small = hn::Lt(magnitude, hn::Set(di, (127 - 6) << 23));
  const auto element = hn::Or(hn::IfThenElse(is_small, small, large), sign);
  hn::StoreU(hn::DemoteTo(du8, element), du8, reinterpret_cast<std::uint8_t*>(to));
}

#endif  // HWY_TARGET != HWY_SCALAR

// row + channels, or row - channels.
template <bool kAdd, class E>
HWY_INLINE void add_channels(E element, const std::byte* channels, float* row, std::size_t count) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= count; i += lanes) {
    const auto channel = load_lanes(element, d, channels + i * E::kBytes);
    const auto value = hn::LoadU(d, row + i);
    hn::StoreU(kAdd ? hn::Add(value, channel) : hn::Sub(value, channel), d, row + i);
  }
#endif
  for (; i < count; ++i) {
    const float channel = element.load_one(channels + i * E::kBytes);
    row[i] = kAdd ? row[i] + channel : row[i] - channel;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace inferscale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
