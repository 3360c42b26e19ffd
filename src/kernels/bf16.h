#pragma once

#include <bit>
#include <cstdint>

namespace inferscale::kernels {

// bfloat16, the upper half of a float, as its 16 bits: one element at a time, as f16.h has it for
// binary16.

/// Exact, NaNs included.
[[nodiscard]] inline float float_from_bf16(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

/// Rounds to nearest, ties to even; beyond the largest finite value to infinity. NaNs become quiet
/// and keep sign and leading payload bits.
[[nodiscard]] inline std::uint16_t bf16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace inferscale::kernels
