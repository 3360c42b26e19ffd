#include "kv/cuda/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/cuda/device_tables.h"
#include "kernels/cuda/kv_capture.h"
#include "kernels/cuda/kv_compose.h"
#include "kv/cuda/page_memory_cuda.h"

namespace inferscale {
namespace {

constexpr auto kPoll = std::chrono::microseconds(50);

/// A capturer and the lock on it, shared with the batches that it has given.
struct SharedCapturer {
  std::mutex mutex;
  std::unique_ptr<CudaCapturer> capturer;
};

class CudaBatch final : public CaptureBatch {
 public:
  CudaBatch(std::shared_ptr<SharedCapturer> shared, CudaCapturer::Batch batch)
      : shared_(std::move(shared)), batch_(batch) {}
  ~CudaBatch() override {
    (void)wait();  // the device may still write into its buffer
    const std::lock_guard lock(shared_->mutex);
    shared_->capturer->release(batch_);
  }

  bool ready() override {
    const Result<bool> passed = poll();
    return !passed.ok() || *passed;
  }
  Status wait() override {
    for (;;) {
      const Result<bool> passed = poll();
      if (!passed.ok()) {
        return unavailable(passed.status().message());
      }
      if (*passed) {
        return Status();
      }
      std::this_thread::sleep_for(kPoll);  // without the lock: the engine goes on capturing
    }
  }
  Status read(std::size_t run, RecordBuilder& builder) override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->capturer->fill(batch_, run, builder);
  }

 private:
  Result<bool> poll() {
    const std::lock_guard lock(shared_->mutex);
    return shared_->capturer->ready(batch_);
  }

  const std::shared_ptr<SharedCapturer> shared_;
  const CudaCapturer::Batch batch_;
};

class PagedCudaCapturer final : public PagedCapturer {
 public:
  explicit PagedCudaCapturer(std::shared_ptr<SharedCapturer> shared) : shared_(std::move(shared)) {}

  Result<std::unique_ptr<CaptureBatch>> capture(std::span<const CaptureRun> runs,
                                                void* stream) override {
    const std::lock_guard lock(shared_->mutex);
    INFERSCALE_ASSIGN_OR_RETURN(const CudaCapturer::Batch batch,
                                shared_->capturer->start(runs, stream));
    return std::unique_ptr<CaptureBatch>(std::make_unique<CudaBatch>(shared_, batch));
  }

 private:
  const std::shared_ptr<SharedCapturer> shared_;
};

class CudaDevice final : public DeviceBackend {
 public:
  CudaDevice(int device, std::shared_ptr<CudaClock> clock, std::shared_ptr<PageMemory> gpu,
             std::shared_ptr<PageMemory> pinned)
      : device_(device),
        clock_(std::move(clock)),
        gpu_(std::move(gpu)),
        pinned_(std::move(pinned)) {}

  std::shared_ptr<DeviceClock> clock() override { return clock_; }
  std::shared_ptr<PageMemory> gpu() override { return gpu_; }
  std::shared_ptr<PageMemory> pinned() override { return pinned_; }

  Result<std::unique_ptr<PagedComposer>> make_composer(const PagedCache& where) override {
    const cuda::DeviceScope scope(device_);
    INFERSCALE_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaComposer> made,
        CudaComposer::create(where.table, where.cache, where.pages,
                             static_cast<std::uint32_t>(where.max_tokens)));
    return std::unique_ptr<PagedComposer>(std::move(made));
  }

  Result<std::unique_ptr<PagedCapturer>> make_capturer(const PagedCache& where) override {
    const cuda::DeviceScope scope(device_);
    INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::DeviceRope> rope,
                                cuda::DeviceRope::upload(where.table));
    ConstCacheLayout cache;
    cache.dtype = where.cache.dtype;
    cache.shape = where.cache.shape;
    cache.k.assign(where.cache.k.begin(), where.cache.k.end());
    cache.v.assign(where.cache.v.begin(), where.cache.v.end());
    cache.k_strides = where.cache.k_strides;
    cache.v_strides = where.cache.v_strides;
    cache.rows_per_block = where.cache.rows_per_block;
    cache.n_rows = where.cache.n_rows;
    CudaCapturer::Options options;
    options.codec = where.pages.codec;
    options.max_tokens = static_cast<std::uint32_t>(where.max_tokens);
    auto shared = std::make_shared<SharedCapturer>();
    INFERSCALE_ASSIGN_OR_RETURN(shared->capturer,
                                CudaCapturer::create(std::move(rope), cache, options));
    return std::unique_ptr<PagedCapturer>(std::make_unique<PagedCudaCapturer>(std::move(shared)));
  }

 private:
  const int device_;
  const std::shared_ptr<CudaClock> clock_;
  const std::shared_ptr<PageMemory> gpu_;
  const std::shared_ptr<PageMemory> pinned_;
};

}  // namespace

Result<std::unique_ptr<DeviceBackend>> make_cuda_device(const DeviceOptions& options) {
  if (options.device < 0 || options.device >= cuda::device_count()) {
    return unavailable("there is no CUDA device " + std::to_string(options.device));
  }
  INFERSCALE_RETURN_IF_ERROR(options.layout.validate().with_context("page layout"));
  const cuda::DeviceScope scope(options.device);
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<CudaClock> clock, CudaClock::create(4096));
  std::shared_ptr<PageMemory> gpu;
  std::shared_ptr<PageMemory> pinned;
  const std::size_t page = options.layout.page_bytes();
  if (options.gpu_budget_bytes >= page) {
    INFERSCALE_ASSIGN_OR_RETURN(
        gpu, CudaPageMemory::create(clock, options.layout, options.gpu_budget_bytes / page, {}));
  }
  if (options.pinned_budget_bytes >= page) {
    INFERSCALE_ASSIGN_OR_RETURN(
        pinned, PinnedPageMemory::create(options.layout, options.pinned_budget_bytes / page));
  }
  return std::unique_ptr<DeviceBackend>(std::make_unique<CudaDevice>(
      options.device, std::move(clock), std::move(gpu), std::move(pinned)));
}

}  // namespace inferscale
