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

/// Heads whose largest magnitude is below kTiny are stored as zeros; one of kHuge and above,
/// infinite or NaN cannot be stored.
inline constexpr float kTiny = 0x1p-100F;
inline constexpr float kHuge = 0x1p127F;
/// Instead of a scale, for a head that cannot be stored; its elements are zeros.
inline constexpr std::uint32_t kNoScaleBits = 0x7FC00000U;

/// The element of the largest magnitude.
constexpr float largest_element(KvCodec /* codec */) { return 127.0F; }

/// Of a head whose largest magnitude has these bits (an infinity's and NaN's are the largest).
constexpr float head_scale(std::uint32_t magnitude_bits, float largest_element) {
  if (magnitude_bits >= std::bit_cast<std::uint32_t>(kHuge)) {
    return std::bit_cast<float>(kNoScaleBits);
  }
  if (magnitude_bits < std::bit_cast<std::uint32_t>(kTiny)) {
    return 0;
  }
  const float exact = std::bit_cast<float>(magnitude_bits) / largest_element;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(exact) + 0xFFU) & ~0xFFU);
}

/// Whether head_scale can have given these bits for a head that can be stored; no element overflows
/// with such a scale.
constexpr bool is_scale(std::uint32_t bits) {
  constexpr std::uint32_t kLowest = std::bit_cast<std::uint32_t>(0x1p-110F);
  constexpr std::uint32_t kAbove = std::bit_cast<std::uint32_t>(0x1p121F);
  return bits == 0 || (bits >= kLowest && bits < kAbove && (bits & 0xFFU) == 0);
}

}  // namespace inferscale::kernels
