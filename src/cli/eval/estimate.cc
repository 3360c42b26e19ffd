#include "cli/eval/estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "cli/bench/statistics.h"

namespace inferscale::cli {
namespace {

constexpr int kDraws = 2000;

struct Sum {
  double values = 0;
  double count = 0;
};

// Not std::uniform_int_distribution: its numbers differ from library to library.
std::size_t draw(std::mt19937_64& random, std::size_t n) { return random() % n; }

}  // namespace

Estimate estimate_mean(const std::vector<std::vector<double>>& by_case, std::uint64_t seed) {
  std::vector<Sum> units;
  for (const std::vector<double>& values : by_case) {
    if (!values.empty()) {
      units.push_back(
          {std::accumulate(values.begin(), values.end(), 0.0), static_cast<double>(values.size())});
    }
  }
  if (units.size() == 1) {
    units.clear();
    for (const std::vector<double>& values : by_case) {
      for (const double value : values) {
        units.push_back({value, 1});
      }
    }
  }
  if (units.empty()) {
    return {};
  }
  std::mt19937_64 random(seed);
  std::vector<double> means;
  for (int i = 0; i < kDraws; ++i) {
    Sum sum;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const Sum& unit = units[draw(random, units.size())];
      sum.values += unit.values;
      sum.count += unit.count;
    }
    means.push_back(sum.values / sum.count);
  }
  Sum all;
  for (const Sum& unit : units) {
    all.values += unit.values;
    all.count += unit.count;
  }
  return {all.values / all.count, percentile(means, 0.025), percentile(means, 0.975)};
}

double sign_flip_p(const std::vector<double>& differences, std::uint64_t seed) {
  if (differences.empty()) {
    return 1;
  }
  const double observed = std::abs(std::accumulate(differences.begin(), differences.end(), 0.0));
  std::mt19937_64 random(seed);
  int as_large = 1;  // the observed signs themselves
  for (int i = 0; i < kDraws; ++i) {
    double sum = 0;
    for (const double difference : differences) {
      sum += (random() & 1U) != 0 ? difference : -difference;
    }
    as_large += std::abs(sum) >= observed * (1 - 1e-12) ? 1 : 0;
  }
  return static_cast<double>(as_large) / (kDraws + 1);
}

}  // namespace inferscale::cli
