#include "cli/bench/machine.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>

namespace inferscale::cli {
namespace {

// Our own start-up counts towards the load; above this something else runs as well.
constexpr double kIdleLoadPerCore = 0.5;

unsigned cores() { return std::max(1U, std::thread::hardware_concurrency()); }

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  constexpr std::string_view kKey = "model name";
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.compare(0, kKey.size(), kKey) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

}  // namespace

std::string machine_description() {
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<double>(sysconf(_SC_PAGE_SIZE)) / (1ULL << 30);
  utsname system = {};
  uname(&system);
  return fmt::format("{}, {} cores, {:.1f} GiB, {} {}", processor_name(), cores(), memory,
                     system.sysname, system.machine);
}

double load_average() {
  double load = -1;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

std::string busy_warning() {
  const double load = load_average();
  if (load <= kIdleLoadPerCore * cores()) {
    return {};
  }
  return fmt::format(
      "the machine is busy (load {:.1f} on {} cores): absolute times will be too long, ratios "
      "less certain",
      load, cores());
}

}  // namespace inferscale::cli
