#include "base/day.h"

#include <fmt/format.h>

#include <array>
#include <chrono>

namespace inferscale {

std::string format_day(TimestampUs time, int offset_minutes) {
  static constexpr std::array<const char*, 12> kMonths = {
      "January", "February", "March",     "April",   "May",      "June",
      "July",    "August",   "September", "October", "November", "December"};
  const std::chrono::sys_time<std::chrono::microseconds> at{std::chrono::microseconds(time) +
                                                            std::chrono::minutes(offset_minutes)};
  const std::chrono::year_month_day date{std::chrono::floor<std::chrono::days>(at)};
  return fmt::format("{} {} {}", static_cast<unsigned>(date.day()),
                     kMonths[static_cast<unsigned>(date.month()) - 1],
                     static_cast<int>(date.year()));
}

}  // namespace inferscale
