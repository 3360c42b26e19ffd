#include <memory>
#include <utility>

#include "kv/device_backend.h"

namespace inferscale {
namespace {

class PlainDevice final : public DeviceBackend {
 public:
  PlainDevice(std::shared_ptr<PageMemory> gpu, std::shared_ptr<PageMemory> pinned)
      : gpu_(std::move(gpu)), pinned_(std::move(pinned)) {}

  std::shared_ptr<DeviceClock> clock() override { return clock_; }
  std::shared_ptr<PageMemory> gpu() override { return gpu_; }
  std::shared_ptr<PageMemory> pinned() override { return pinned_; }
  Result<std::unique_ptr<PagedComposer>> make_composer(const PagedCache& where) override {
    return make_cpu_composer(where);
  }
  Result<std::unique_ptr<PagedCapturer>> make_capturer(const PagedCache& where) override {
    return make_cpu_capturer(where);
  }

 private:
  const std::shared_ptr<DeviceClock> clock_ = std::make_shared<ImmediateClock>();
  const std::shared_ptr<PageMemory> gpu_;
  const std::shared_ptr<PageMemory> pinned_;
};

Result<std::shared_ptr<PageMemory>> make_memory(std::string_view name, const PageLayout& layout,
                                                std::uint64_t budget_bytes) {
  const std::uint64_t n_pages = budget_bytes / layout.page_bytes();
  if (n_pages == 0) {
    return std::shared_ptr<PageMemory>();
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<PlainPageMemory> memory,
                              PlainPageMemory::create(name, layout, n_pages));
  return std::shared_ptr<PageMemory>(std::move(memory));
}

}  // namespace

Result<std::unique_ptr<DeviceBackend>> make_plain_device(const DeviceOptions& options) {
  INFERSCALE_RETURN_IF_ERROR(options.layout.validate().with_context("page layout"));
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<PageMemory> gpu,
                              make_memory("gpu", options.layout, options.gpu_budget_bytes));
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<PageMemory> pinned,
                              make_memory("pinned", options.layout, options.pinned_budget_bytes));
  return std::unique_ptr<DeviceBackend>(
      std::make_unique<PlainDevice>(std::move(gpu), std::move(pinned)));
}

}  // namespace inferscale
