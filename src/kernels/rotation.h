#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "inferscale/model_spec.h"
#include "kernels/kv_rows.h"

namespace inferscale::kernels {

/// The coefficients of some tokens, in the order rotate_rows reads them: few enough to stay in a
/// cache while every layer and head of those tokens is turned. Halves: per pair c and s. Adjacent:
/// per element (c, c) and (-s, s). An inverse rotation is the rotation by c / (c^2 + s^2) and -s /
/// (c^2 + s^2), computed in double, so one kernel does both.
class RotationTile {
 public:
  enum class Direction { kForward, kInverse };

  /// How many cosines fit into half of the first-level cache beside as many sines; as many tokens
  /// as these suffice for are best where each layer is passed through once. And of the second
  /// level, for going through more tokens of a layer before the next one.
  static constexpr std::size_t kNear = 2048;  // 8 KB
  static constexpr std::size_t kFar = 16384;

  /// Borrows `table`. `floats`: at most so many cosines, and as many sines; >= head_dim's maximum.
  RotationTile(const RopeTable& table, Direction direction, std::size_t floats);

  /// Tokens that it can hold; at least 1.
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  /// Writes the coefficients of consecutive positions for the tokens from `slot` on.
  /// REQUIRES: slot + n_tokens <= capacity(), first_position + n_tokens <= table.max_positions().
  void fill(std::size_t slot, std::uint32_t first_position, std::size_t n_tokens);

  /// Of the tokens from `slot` on, as they were filled.
  [[nodiscard]] Rotation from(std::size_t slot) const;

 private:
  void put(std::size_t slot, std::size_t pair, float c, float s);

  const RopeTable& table_;
  Direction direction_;
  std::size_t stride_;
  std::size_t capacity_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

}  // namespace inferscale::kernels
