#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cuda/device.h"
#include "kv/page_memory.h"

namespace inferscale {

/// How far the streams of a CUDA device have got. Thread-safe.
class CudaClock final : public DeviceClock {
 public:
  /// Of the calling thread's device. `marks`: for so many open tickets events are made at once; for
  /// more they are made when they are needed. Errors: kUnavailable, kResourceExhausted.
  [[nodiscard]] static Result<std::shared_ptr<CudaClock>> create(std::size_t marks = 64);

  [[nodiscard]] Result<DeviceTicket> mark(void* stream) override;
  [[nodiscard]] bool passed(DeviceTicket ticket) override;
  [[nodiscard]] Status wait(DeviceTicket ticket) override;

  [[nodiscard]] int device() const { return device_; }

 private:
  struct Mark {
    std::shared_ptr<cuda::Event> event;  // shared with who waits for it
    bool passed = false;
  };

  CudaClock() = default;
  [[nodiscard]] bool passed_locked(DeviceTicket ticket);
  void forget_passed();

  int device_ = 0;
  std::mutex mutex_;
  bool failed_ = false;
  DeviceTicket first_ = 1;  // of marks_.front()
  std::deque<Mark> marks_;  // consecutive tickets
  std::vector<std::shared_ptr<cuda::Event>> spare_;
};

/// Pages in the device's own memory ("gpu"). Records come through pinned staging memory and a
/// stream of the memory's own; everything else is copied and zeroed in that stream, too.
class CudaPageMemory final : public PageMemory {
 public:
  struct Options {
    /// Pages of staging memory: a write takes as many as the record has. A longer record is written
    /// in parts, and then waits for its own earlier parts.
    std::size_t staging_pages = 64;
  };

  /// On the clock's device. Errors: kInvalidArgument (layout, numbers of pages),
  /// kResourceExhausted, kUnavailable.
  [[nodiscard]] static Result<std::unique_ptr<CudaPageMemory>> create(
      std::shared_ptr<CudaClock> clock, const PageLayout& layout, std::size_t n_pages,
      const Options& options);
  /// Waits for the memory's own work and zeroes all of it. REQUIRES: nobody reads the pages.
  ~CudaPageMemory() override;

  [[nodiscard]] std::string_view name() const override { return "gpu"; }
  [[nodiscard]] const PageLayout& layout() const override { return layout_; }
  [[nodiscard]] std::size_t n_pages() const override { return n_pages_; }
  [[nodiscard]] std::byte* page(std::uint32_t page) const override {
    return arena_.data() + page * layout_.page_bytes();
  }
  [[nodiscard]] Status write(std::span<const std::uint32_t> pages, const Record& record) override;
  [[nodiscard]] Result<DeviceTicket> copy(std::span<const std::uint32_t> pages,
                                          std::span<const std::byte* const> sources) override;
  [[nodiscard]] Status zero(std::span<const std::uint32_t> pages) override;
  [[nodiscard]] Status publish(void* stream) override;
  [[nodiscard]] Status settle() override;
  [[nodiscard]] Status read(std::uint32_t page, std::span<std::byte> out) override;

 private:
  // Staging pages are handed out in a ring; a part of it is free again once its copies are done.
  struct Part {
    std::uint64_t end = 0;  // staged_ after it
    std::size_t event = 0;
  };

  CudaPageMemory() = default;
  [[nodiscard]] Status reclaim(bool wait);
  [[nodiscard]] std::size_t free_staging() const;
  [[nodiscard]] Status stage(std::span<const std::uint32_t> pages, const Record& record,
                             std::size_t first);
  [[nodiscard]] Status changed();

  std::shared_ptr<CudaClock> clock_;
  PageLayout layout_;
  std::size_t n_pages_ = 0;
  std::mutex mutex_;
  cuda::Buffer arena_;
  cuda::Buffer staging_;
  std::size_t staging_pages_ = 0;
  std::uint64_t staged_ = 0;     // pages ever handed out
  std::uint64_t reclaimed_ = 0;  // of these, free again
  std::deque<Part> parts_;
  std::vector<cuda::Event> part_events_;
  std::size_t next_event_ = 0;
  cuda::Event written_;  // the last change to a page
  cuda::Stream stream_;
};

/// Pages in pinned host memory ("pinned"), which the device reads where they are.
class PinnedPageMemory final : public HostPageMemory {
 public:
  /// Errors: kInvalidArgument (layout, number of pages), kResourceExhausted, kUnavailable.
  [[nodiscard]] static Result<std::unique_ptr<PinnedPageMemory>> create(const PageLayout& layout,
                                                                        std::size_t n_pages);
  /// Zeroes all of it. REQUIRES: nobody reads the pages.
  ~PinnedPageMemory() override { wipe(); }

 private:
  PinnedPageMemory(const PageLayout& layout, std::size_t n_pages, cuda::Buffer arena)
      : HostPageMemory("pinned", layout, n_pages, arena.data()), arena_(std::move(arena)) {}

  cuda::Buffer arena_;
};

}  // namespace inferscale
