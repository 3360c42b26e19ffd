#include "support/oracle_math.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace inferscale::testing {

Vector Matrix::operator*(const Vector& x) const {
  assert(x.size() == inputs);
  Vector y(outputs, 0.0);
  for (std::size_t row = 0; row < outputs; ++row) {
    for (std::size_t column = 0; column < inputs; ++column) {
      y[row] += values[row * inputs + column] * x[column];
    }
  }
  return y;
}

Vector add(const Vector& a, const Vector& b) {
  assert(a.size() == b.size());
  Vector sum(a);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += b[i];
  }
  return sum;
}

Vector scale(const Vector& x, double factor) {
  Vector scaled(x);
  for (double& value : scaled) {
    value *= factor;
  }
  return scaled;
}

Vector rms_norm(const Vector& x, const Vector& weight, double epsilon) {
  assert(x.size() == weight.size());
  double squares = 0.0;
  for (const double value : x) {
    squares += value * value;
  }
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  Vector normed(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    normed[i] = x[i] * factor * weight[i];
  }
  return normed;
}

Vector rms_norm_heads(const Vector& x, const Vector& weight, double epsilon) {
  Vector normed;
  for (auto head = x.begin(); head != x.end(); head += static_cast<std::ptrdiff_t>(weight.size())) {
    const Vector part(head, head + static_cast<std::ptrdiff_t>(weight.size()));
    const Vector result = rms_norm(part, weight, epsilon);
    normed.insert(normed.end(), result.begin(), result.end());
  }
  return normed;
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

void softmax(Vector& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (double& value : x) {
    value = std::exp(value - largest);
    sum += value;
  }
  for (double& value : x) {
    value /= sum;
  }
}

}  // namespace inferscale::testing
