#pragma once

#include <cstddef>
#include <vector>

namespace inferscale::testing {

using Vector = std::vector<double>;

/// y = W x, row by row.
struct Matrix {
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  std::vector<double> values;  ///< [outputs][inputs]
  [[nodiscard]] Vector operator*(const Vector& x) const;
};

[[nodiscard]] Vector add(const Vector& a, const Vector& b);
[[nodiscard]] Vector scale(const Vector& x, double factor);
/// x / sqrt(mean(x^2) + epsilon) * weight
[[nodiscard]] Vector rms_norm(const Vector& x, const Vector& weight, double epsilon);
/// The same for each run of weight.size() elements.
[[nodiscard]] Vector rms_norm_heads(const Vector& x, const Vector& weight, double epsilon);
[[nodiscard]] double silu(double x);
/// In place.
void softmax(Vector& x);

}  // namespace inferscale::testing
