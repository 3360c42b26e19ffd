#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "memory/service_core.h"

namespace inferscale {

/// Automatic `top_j`: as many of the best facts, at most 8, as this engine prefills for at most 10
/// % more TTFT. Measured once per model, threads and data directory and kept in the catalog, so
/// that answers do not change from start to start.
[[nodiscard]] Result<std::uint32_t> calibrated_top_j(ServiceCore& core, const WorkControl& control);
/// Measures and stores it again.
/// On a machine too busy to tell (the same run takes very different times) it is 0 and not kept:
/// the next process measures it, not the next answer.
[[nodiscard]] Result<std::uint32_t> calibrate_top_j(ServiceCore& core, const WorkControl& control);
/// What is stored, in words; for stats.
[[nodiscard]] Result<std::optional<std::string>> describe_top_j(ServiceCore& core,
                                                                const EngineParts& parts);

}  // namespace inferscale
