#pragma once

#include "memory/service_core.h"

namespace inferscale {

/// `MemoryService::verify` and `repair` over the shared core.
[[nodiscard]] Result<VerifyReport> verify_data(ServiceCore& core, VerifyLevel level,
                                               const WorkControl& control);
[[nodiscard]] Result<RepairReport> repair_data(ServiceCore& core, const WorkControl& control);

}  // namespace inferscale
