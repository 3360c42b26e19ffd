#include "cli/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace inferscale::cli {

double percentile(std::vector<double> samples, double share) {
  if (samples.empty()) {
    return 0;
  }
  std::sort(samples.begin(), samples.end());
  const double place = share * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  const double part = place - static_cast<double>(below);
  return samples[below] * (1 - part) + samples[above] * part;
}

double median(const std::vector<double>& samples) { return percentile(samples, 0.5); }

std::pair<double, double> ratio_interval(const std::vector<double>& above,
                                         const std::vector<double>& below, std::uint64_t seed) {
  constexpr int kDraws = 1000;
  if (above.empty()) {
    return {0, 0};
  }
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::size_t> pick(0, above.size() - 1);
  std::vector<double> ratios;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<double> a, b;
    for (std::size_t i = 0; i < above.size(); ++i) {
      const std::size_t round = pick(random);
      a.push_back(above[round]);
      b.push_back(below[round]);
    }
    ratios.push_back(median(a) / median(b));
  }
  return {percentile(ratios, 0.025), percentile(ratios, 0.975)};
}

}  // namespace inferscale::cli
