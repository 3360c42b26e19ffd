#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "inferscale/model_spec.h"
#include "kernels/kv_rows.h"

namespace inferscale::kernels {

/// The coefficients of a few consecutive positions, in the order rotate_rows reads them: small
/// enough to stay in the first-level cache while every layer and head of those tokens is turned.
/// Halves: per pair c and s. Adjacent: per element (c, c) and (-s, s). An inverse rotation is the
/// rotation by c / (c^2 + s^2) and -s / (c^2 + s^2), computed in double, so one kernel does both.
class RotationTile {
 public:
  enum class Direction { kForward, kInverse };

  /// Borrows `table`.
  RotationTile(const RopeTable& table, Direction direction);

  /// Tokens that it can hold; at least 1.
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  /// Writes the coefficients of consecutive positions for the tokens from `slot` on.
  /// REQUIRES: slot + n_tokens <= capacity(), first_position + n_tokens <= table.max_positions().
  void fill(std::size_t slot, std::uint32_t first_position, std::size_t n_tokens);

  /// Of the tokens from `slot` on, as they were filled.
  [[nodiscard]] Rotation from(std::size_t slot) const;

 private:
  static constexpr std::size_t kFloats = 2048;  // 8 KB each of cos and sin; >= head_dim's maximum

  void put(std::size_t slot, std::size_t pair, float c, float s);

  const RopeTable& table_;
  Direction direction_;
  std::size_t stride_;
  std::size_t capacity_;
  alignas(64) std::array<float, kFloats> cos_;
  alignas(64) std::array<float, kFloats> sin_;
};

}  // namespace inferscale::kernels
