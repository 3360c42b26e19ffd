#pragma once

#include <string>

#include "base/clock.h"

namespace inferscale {

/// "8 May 2023", the day where the clock is `offset_minutes` ahead of UTC. REQUIRES: a time that
/// `parse_rfc3339` gives.
[[nodiscard]] std::string format_day(TimestampUs time, int offset_minutes = 0);

}  // namespace inferscale
