#include "kv/cuda/cuda_device.h"

#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/arguments.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_tables.h"
#include "kernels/cuda/kv_capture.h"
#include "kernels/cuda/kv_compose.h"
#include "kv/cuda/page_memory_cuda.h"

namespace inferscale {
namespace {

/// A failure of the device is kUnavailable to whoever asks again later, whatever CUDA calls it.
Status device_status(Status status) {
  return status.code() == StatusCode::kInternal ? unavailable(status.message()) : status;
}

class Composer final : public PagedComposer {
 public:
  Composer(int device, std::unique_ptr<CudaComposer> composer)
      : device_(device), composer_(std::move(composer)) {}
  ~Composer() override {
    const cuda::DeviceScope scope(device_);
    composer_.reset();
  }

  Status compose(std::span<const PagedItem> items, void* stream) override {
    const cuda::DeviceScope scope(device_);
    return device_status(composer_->compose(items, stream));
  }

 private:
  const int device_;
  std::unique_ptr<CudaComposer> composer_;
};

/// A capturer that its batches share: they are finished by other threads than it is used by.
struct SharedCapturer {
  SharedCapturer(int device_in, std::unique_ptr<CudaCapturer> capturer_in)
      : device(device_in), capturer(std::move(capturer_in)) {}
  ~SharedCapturer() {
    const cuda::DeviceScope scope(device);
    capturer.reset();
  }

  const int device;
  std::unique_ptr<CudaCapturer> capturer;
};

class Batch final : public CaptureBatch {
 public:
  Batch(std::shared_ptr<SharedCapturer> shared, CudaCapturer::Batch batch)
      : shared_(std::move(shared)), batch_(batch) {}
  ~Batch() override {
    if (wait().ok()) {  // else the device failed, and its slot is of no use any more
      shared_->capturer->release(batch_);
    }
  }

  // Asks from time to time: waiting for an event keeps a processor busy.
  Status wait() override {
    const cuda::DeviceScope scope(shared_->device);
    while (true) {
      const Result<bool> ready = shared_->capturer->ready(batch_);
      if (!ready.ok() || *ready) {
        return device_status(ready.status());
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Status read(std::size_t run, RecordBuilder& builder) override {
    const Status status = shared_->capturer->fill(batch_, run, builder);
    return status.code() == StatusCode::kNotFound ? invalid_argument(status.message()) : status;
  }

 private:
  const std::shared_ptr<SharedCapturer> shared_;
  const CudaCapturer::Batch batch_;
};

class Capturer final : public PagedCapturer {
 public:
  explicit Capturer(std::shared_ptr<SharedCapturer> shared) : shared_(std::move(shared)) {}

  Result<std::unique_ptr<CaptureBatch>> capture(std::span<const CaptureRun> runs,
                                                void* stream) override {
    const cuda::DeviceScope scope(shared_->device);
    const Result<CudaCapturer::Batch> batch = shared_->capturer->start(runs, stream);
    if (!batch.ok()) {
      return device_status(batch.status());
    }
    return std::unique_ptr<CaptureBatch>(std::make_unique<Batch>(shared_, *batch));
  }

 private:
  const std::shared_ptr<SharedCapturer> shared_;
};

/// Tickets that may be open at a time: one of each step, and one of each record that is being
/// copied up, of which there may be thousands at once.
constexpr std::size_t kMarks = 16384;

class CudaDevice final : public DeviceBackend {
 public:
  CudaDevice(int device, std::shared_ptr<DeviceClock> clock, std::shared_ptr<PageMemory> gpu,
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
    INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::DeviceRope> rope, rope_of(where));
    INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<CudaComposer> composer,
                                CudaComposer::create(std::move(rope), where.cache, where.pages,
                                                     static_cast<std::uint32_t>(where.max_tokens)));
    return std::unique_ptr<PagedComposer>(std::make_unique<Composer>(device_, std::move(composer)));
  }

  Result<std::unique_ptr<PagedCapturer>> make_capturer(const PagedCache& where) override {
    const cuda::DeviceScope scope(device_);
    INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::DeviceRope> rope, rope_of(where));
    CudaCapturer::Options options;
    options.codec = where.pages.codec;
    options.max_tokens = static_cast<std::uint32_t>(where.max_tokens);
    INFERSCALE_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaCapturer> capturer,
        CudaCapturer::create(std::move(rope), kernels::as_const(where.cache), options));
    return std::unique_ptr<PagedCapturer>(
        std::make_unique<Capturer>(std::make_shared<SharedCapturer>(device_, std::move(capturer))));
  }

 private:
  /// The table is uploaded once, and shared.
  Result<std::shared_ptr<const cuda::DeviceRope>> rope_of(const PagedCache& where) {
    constexpr std::size_t kMaxTokens = std::size_t{1} << 24;
    if (where.max_tokens < 1 || where.max_tokens > kMaxTokens) {
      return invalid_argument(
          fmt::format("max_tokens must be in 1..{}, not {}", kMaxTokens, where.max_tokens));
    }
    const std::lock_guard lock(mutex_);
    if (rope_ == nullptr || &rope_->table() != where.table.get()) {
      INFERSCALE_ASSIGN_OR_RETURN(rope_, cuda::DeviceRope::upload(where.table));
    }
    return rope_;
  }

  const int device_;
  const std::shared_ptr<DeviceClock> clock_;
  const std::shared_ptr<PageMemory> gpu_;
  const std::shared_ptr<PageMemory> pinned_;
  std::mutex mutex_;
  std::shared_ptr<const cuda::DeviceRope> rope_;
};

}  // namespace

Result<std::unique_ptr<DeviceBackend>> make_cuda_device(const DeviceOptions& options) {
  INFERSCALE_RETURN_IF_ERROR(options.layout.validate().with_context("page layout"));
  const int devices = cuda::device_count();
  if (options.device < 0 || options.device >= devices) {
    return unsupported(fmt::format("cuda:{}: this process can use {} CUDA devices, counted from 0",
                                   options.device, devices));
  }
  const cuda::DeviceScope scope(options.device);
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<CudaClock> clock, CudaClock::create(kMarks));
  std::shared_ptr<PageMemory> gpu;
  std::shared_ptr<PageMemory> pinned;
  const std::size_t page_bytes = options.layout.page_bytes();
  if (const std::uint64_t n_pages = options.gpu_budget_bytes / page_bytes; n_pages > 0) {
    INFERSCALE_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaPageMemory> memory,
        CudaPageMemory::create(clock, options.layout, n_pages, CudaPageMemory::Options()));
    gpu = std::move(memory);
  }
  if (const std::uint64_t n_pages = options.pinned_budget_bytes / page_bytes; n_pages > 0) {
    INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<PinnedPageMemory> memory,
                                PinnedPageMemory::create(options.layout, n_pages));
    pinned = std::move(memory);
  }
  return std::unique_ptr<DeviceBackend>(std::make_unique<CudaDevice>(
      options.device, std::move(clock), std::move(gpu), std::move(pinned)));
}

}  // namespace inferscale
