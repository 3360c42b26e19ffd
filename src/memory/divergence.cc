#include "memory/divergence.h"

#include <algorithm>
#include <cmath>

namespace inferscale {

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  // What is less probable than e^-80 adds nothing, and its logarithm may be infinite.
  constexpr double kLeastLogProb = -80;
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i];
    if (log_p > kLeastLogProb) {
      sum += std::exp(log_p) * (log_p - static_cast<double>(q[i]));
    }
  }
  return std::max(sum, 0.0);
}

}  // namespace inferscale
