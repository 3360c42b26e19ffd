#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "inferscale/kv_record.h"

/// Scaled codecs: what an element is worth, and how the scale of a head is found. The scale is the
/// largest magnitude of the head over the codec's largest element, rounded up to 16 significant
/// bits. So the product of a scale and an element is exact in fp32, and a head that is quantised
/// again gives the same bytes. The CPU's kernels and the device's take these steps bit for bit.
namespace inferscale::kernels {

/// Heads whose largest magnitude is below kTiny are stored as zeros; one of `too_large` and above,
/// infinite or NaN cannot be stored.
inline constexpr float kTiny = 0x1p-100F;
inline constexpr float kHuge = 0x1p127F;
constexpr float too_large(KvCodec codec) { return codec == KvCodec::kQ4 ? 0x1p110F : kHuge; }
/// Instead of a scale, for a head that cannot be stored; its elements are zeros.
inline constexpr std::uint32_t kNoScaleBits = 0x7FC00000U;

/// What the largest magnitude of a head is worth in scales: the element of the largest magnitude;
/// of kQ4 the end of its outermost level.
constexpr float largest_element(KvCodec codec) {
  return codec == KvCodec::kFp8E4m3 ? 448.0F : codec == KvCodec::kQ4 ? 8.0F : 127.0F;
}

/// Of a head whose largest magnitude has these bits (an infinity's and NaN's are the largest).
constexpr float head_scale(KvCodec codec, std::uint32_t magnitude_bits) {
  if (magnitude_bits >= std::bit_cast<std::uint32_t>(too_large(codec))) {
    return std::bit_cast<float>(kNoScaleBits);
  }
  if (magnitude_bits < std::bit_cast<std::uint32_t>(kTiny)) {
    return 0;
  }
  const float exact = std::bit_cast<float>(magnitude_bits) / largest_element(codec);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(exact) + 0xFFU) & ~0xFFU);
}

/// Whether head_scale can have given these bits for a head that can be stored; no element overflows
/// with such a scale, nor does a sum of 1024 of kQ4.
constexpr bool is_scale(KvCodec codec, std::uint32_t bits) {
  constexpr std::uint32_t kLowest = std::bit_cast<std::uint32_t>(0x1p-110F);
  const float above = codec == KvCodec::kFp8E4m3 ? 0x1p119F
                      : codec == KvCodec::kQ4    ? 0x1p108F
                                                 : 0x1p121F;
  return bits == 0 ||
         (bits >= kLowest && bits < std::bit_cast<std::uint32_t>(above) && (bits & 0xFFU) == 0);
}

/// Whether the f16 of these bits can be a mean of a kQ4 record: it is finite.
constexpr bool is_mean(std::uint16_t bits) { return (bits & 0x7C00U) != 0x7C00U; }

/// Elements of a kQ4 head are transformed in blocks of this many: the largest power of two that
/// divides their number.
constexpr std::size_t transform_block(std::size_t head_dim) { return head_dim & (~head_dim + 1); }

/// The float that an element of kFp8E4m3 is; 0x7F and 0xFF are NaN there and in no record.
constexpr float float_from_e4m3(std::uint8_t element) {
  const std::uint32_t sign = (element & 0x80U) << 24;
  const std::uint32_t magnitude = element & 0x7FU;
  const float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9F
                                    : std::bit_cast<float>((magnitude << 20) + (120U << 23));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

/// Rounds to the nearest whole number, ties to even, what is added to it and taken away again, as
/// long as the magnitude is below 2^22.
inline constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23

/// The nearest element, ties to even; the largest for what is larger. Not of a NaN.
inline std::uint8_t e4m3_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t element = 0;
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6F)) {
    const float whole = (std::bit_cast<float>(magnitude) * 512.0F + kRounder) - kRounder;
    element = static_cast<std::uint32_t>(whole);
  } else {
    element = ((magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
    element = element > 0x7EU ? 0x7EU : element;
  }
  return static_cast<std::uint8_t>(element | sign);
}

}  // namespace inferscale::kernels
