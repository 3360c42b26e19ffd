#pragma once

#include <cstdint>

#include "base/clock.h"

namespace inferscale {

/// How long to wait after the `attempts`-th failure in a row: 1 s, doubled with each up to an hour,
/// times a factor from 0.5 to 1.5 that `random` chooses, so that facts which failed together are
/// not tried together.
[[nodiscard]] TimestampUs retry_delay_us(std::uint32_t attempts, std::uint32_t random);

}  // namespace inferscale
