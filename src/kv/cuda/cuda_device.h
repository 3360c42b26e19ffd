#pragma once

#include <memory>

#include "inferscale/status.h"
#include "kv/device_backend.h"

namespace inferscale {

/// A CUDA device: pages in its own memory and in pinned memory, and the kernels that read them. The
/// calling threads' devices are left as they are. Errors: kInvalidArgument (layout),
/// kUnsupported (no such device), kResourceExhausted (memory: the budgets are taken at once),
/// kUnavailable.
[[nodiscard]] Result<std::unique_ptr<DeviceBackend>> make_cuda_device(const DeviceOptions& options);

}  // namespace inferscale
