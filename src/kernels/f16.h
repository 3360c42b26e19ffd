#pragma once

#include <bit>
#include <cstdint>

namespace inferscale::kernels {

// IEEE 754 binary16 as its 16 bits. One element at a time: the tails of vector loops and processors
// without wide registers. The bits equal those of the processor instructions (F16C, NEON) for every
// input, so that a record does not depend on which path wrote it.

/// Exact. A signalling NaN becomes quiet and keeps its payload.
[[nodiscard]] inline float float_from_f16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  if (magnitude < 0x0400U) {  // zero or subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  std::uint32_t bits = (magnitude << 13) + (112U << 23);  // exponent bias 15 -> 127
  if (magnitude >= 0x7C00U) {
    bits = (magnitude << 13) | 0x7F800000U;
    bits |= magnitude > 0x7C00U ? 0x00400000U : 0U;
  }
  return std::bit_cast<float>(sign | bits);
}

/// Rounds to nearest, ties to even; beyond 65,504 (from 65,520) to infinity. NaNs become quiet.
[[nodiscard]] inline std::uint16_t f16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits & 0x80000000U) >> 16;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (magnitude >= (143U << 23)) {  // 65,536 and above, infinity, NaN
    const bool is_nan = magnitude > 0x7F800000U;
    half = is_nan ? (0x7E00U | ((magnitude >> 13) & 0x03FFU)) : 0x7C00U;
  } else if (magnitude < (113U << 23)) {
    // Subnormal result: 0.5 has the last place 2^-24, so the addition itself rounds as wanted.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    half = std::bit_cast<std::uint32_t>(shifted) - (126U << 23);
  } else {
    const std::uint32_t odd = (magnitude >> 13) & 1U;
    half = (magnitude - (112U << 23) + 0x0FFFU + odd) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace inferscale::kernels
