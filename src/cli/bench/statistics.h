#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace inferscale::cli {

/// The value below which `share` of the samples lie, interpolated; 0 without samples.
[[nodiscard]] double percentile(std::vector<double> samples, double share);
[[nodiscard]] double median(const std::vector<double>& samples);

/// Bootstrap 95 % interval of median(above) / median(below), rounds drawn in pairs because the
/// arms of a round ran side by side. REQUIRES: equally many samples.
[[nodiscard]] std::pair<double, double> ratio_interval(const std::vector<double>& above,
                                                       const std::vector<double>& below,
                                                       std::uint64_t seed);

}  // namespace inferscale::cli
