#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "inferscale/status.h"
#include "kernels/page_layout.h"
#include "kernels/paged_kernels.h"
#include "kv/page_memory.h"

namespace inferscale {

struct DeviceOptions {
  int device = 0;
  PageLayout layout;
  std::uint64_t gpu_budget_bytes = 0;     ///< of the device's memory; 0: no tier there
  std::uint64_t pinned_budget_bytes = 0;  ///< of pinned memory of the host; 0: no tier there
};

/// A device with its memories and kernels: what the CUDA component provides, or plain memory and
/// the CPU's kernels. Whatever it gives keeps alive what it needs. Thread-safe.
class DeviceBackend {
 public:
  DeviceBackend() = default;
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  [[nodiscard]] virtual std::shared_ptr<DeviceClock> clock() = 0;
  /// As many pages as the budgets hold; null where that is none.
  [[nodiscard]] virtual std::shared_ptr<PageMemory> gpu() = 0;
  /// Its pages are addresses of the device as well as of the host.
  [[nodiscard]] virtual std::shared_ptr<PageMemory> pinned() = 0;
  /// For a cache in the device's memory. Errors: kInvalidArgument, kUnsupported (a layout that the
  /// kernels do not know), kResourceExhausted, kUnavailable.
  [[nodiscard]] virtual Result<std::unique_ptr<PagedComposer>> make_composer(
      const PagedCache& where) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<PagedCapturer>> make_capturer(
      const PagedCache& where) = 0;
};

/// Errors: kInvalidArgument, kUnsupported (no such device, or a build without it),
/// kResourceExhausted (memory), kUnavailable.
using DeviceFactory =
    std::function<Result<std::unique_ptr<DeviceBackend>>(const DeviceOptions& options)>;

/// Plain memory in the place of both tiers, and the CPU's kernels: for tests, and for machines
/// without a device. `options.device` is not looked at.
[[nodiscard]] Result<std::unique_ptr<DeviceBackend>> make_plain_device(
    const DeviceOptions& options);

}  // namespace inferscale
