#pragma once

#include <memory>

#include "inferscale/status.h"
#include "kv/device_backend.h"

namespace inferscale {

/// A CUDA device: pages in its memory and in pinned memory, and the CUDA kernels. `options.device`
/// is its number. Errors: kUnavailable (no driver, no such device), kInvalidArgument,
/// kResourceExhausted.
[[nodiscard]] Result<std::unique_ptr<DeviceBackend>> make_cuda_device(const DeviceOptions& options);

}  // namespace inferscale
