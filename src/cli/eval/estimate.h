#pragma once

#include <cstdint>
#include <vector>

namespace inferscale::cli {

/// A mean with its 95 % bootstrap interval.
struct Estimate {
  double mean = 0;
  double low = 0;
  double high = 0;
};

/// Over all values, with cases drawn with replacement, because questions about one conversation are
/// not independent; with a single case, its values. The same seed gives the same interval. Empty
/// input gives zeros.
[[nodiscard]] Estimate estimate_mean(const std::vector<std::vector<double>>& by_case,
                                     std::uint64_t seed);

/// Two-sided p that paired differences have mean zero, by flipping their signs at random; 1 for no
/// values. Takes differences for independent, which those of one conversation are not quite.
[[nodiscard]] double sign_flip_p(const std::vector<double>& differences, std::uint64_t seed);

}  // namespace inferscale::cli
