#pragma once

#include <string>

namespace inferscale::cli {

/// "AMD EPYC ..., 2 cores, 7.8 GiB, Linux 6.1": what a figure was measured on.
[[nodiscard]] std::string machine_description();

/// Processes that wanted to run during the last minute; negative where unknown.
[[nodiscard]] double load_average();
/// "" on an idle machine, else a warning that figures will be too high.
[[nodiscard]] std::string busy_warning();

}  // namespace inferscale::cli
