#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/device_backend.h"
#include "kv/page_memory.h"

/// A device for tests: plain memory, streams that go on when the test says so, and faults on
/// demand.
namespace inferscale::testing {

/// The streams of a device. What is put into one is done when the test calls `finish`, or at once
/// while `immediate`.
class FakeClock final : public DeviceClock {
 public:
  [[nodiscard]] Result<DeviceTicket> mark(void* stream) override;
  [[nodiscard]] bool passed(DeviceTicket ticket) override;
  /// Finishes everything up to the ticket; or waits, while `blocking`, until `finish` does so.
  [[nodiscard]] Status wait(DeviceTicket ticket) override;

  /// Work that reads these addresses is put into `stream`; the next mark on it covers that.
  void read(void* stream, std::span<const std::byte* const> addresses);
  /// All that was put into the stream until now is done.
  void finish(void* stream);
  /// Whether work that has not been done reads the address.
  [[nodiscard]] bool reads(const std::byte* address) const;

  std::atomic<bool> immediate{false};
  std::atomic<bool> blocking{false};
  std::atomic<bool> exhausted{false};  ///< no mark is left until a memory settles
  std::atomic<bool> dead{false};       ///< every call fails from now on
  std::atomic<std::uint64_t> waits{0};

 private:
  struct Work {
    void* stream = nullptr;
    std::vector<const std::byte*> addresses;
    DeviceTicket ticket = 0;  ///< 0: no mark has covered it yet
  };
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  std::vector<Work> open_;
  std::map<DeviceTicket, void*> pending_;
  DeviceTicket last_ = 0;
};

/// Plain memory that fails on demand, and counts what the contract of PageMemory forbids: a page
/// that is written or zeroed while a stream reads it.
class FakePageMemory final : public PageMemory {
 public:
  FakePageMemory(std::unique_ptr<PlainPageMemory> memory, std::shared_ptr<FakeClock> clock)
      : memory_(std::move(memory)), clock_(std::move(clock)) {}

  [[nodiscard]] std::string_view name() const override { return memory_->name(); }
  [[nodiscard]] const PageLayout& layout() const override { return memory_->layout(); }
  [[nodiscard]] std::size_t n_pages() const override { return memory_->n_pages(); }
  [[nodiscard]] std::byte* page(std::uint32_t page) const override { return memory_->page(page); }
  [[nodiscard]] Status write(std::span<const std::uint32_t> pages, const Record& record) override;
  /// Its ticket passes at once, or with `finish(copy_stream())` while `slow_copies`.
  [[nodiscard]] Result<DeviceTicket> copy(std::span<const std::uint32_t> pages,
                                          std::span<const std::byte* const> sources) override;
  [[nodiscard]] Status zero(std::span<const std::uint32_t> pages) override;
  [[nodiscard]] Status publish(void* stream) override;
  [[nodiscard]] Status settle() override;
  [[nodiscard]] Status read(std::uint32_t page, std::span<std::byte> out) override {
    return memory_->read(page, out);
  }

  [[nodiscard]] bool is_zero(std::uint32_t page) const;
  [[nodiscard]] void* copy_stream() { return this; }

  /// Each is used up by the next call of its kind.
  std::atomic<bool> fail_write{false};  ///< after the first page has been written
  std::atomic<bool> no_staging{false};  ///< kResourceExhausted, nothing written
  std::atomic<bool> fail_copy{false};
  std::atomic<bool> fail_publish{false};
  std::atomic<bool> fail_settle{false};
  std::atomic<bool> fail_zero{false};  ///< stays until it is reset
  std::atomic<bool> slow_copies{false};
  std::atomic<std::uint64_t> violations{0};
  std::atomic<std::uint64_t> publishes{0};

 private:
  void check_unread(std::span<const std::uint32_t> pages);

  const std::unique_ptr<PlainPageMemory> memory_;
  const std::shared_ptr<FakeClock> clock_;
};

/// A device of these, with the CPU's kernels.
class FakeDevice final : public DeviceBackend {
 public:
  /// A tier of no pages is not there.
  FakeDevice(const PageLayout& layout, std::size_t gpu_pages, std::size_t pinned_pages);

  [[nodiscard]] std::shared_ptr<DeviceClock> clock() override { return streams; }
  [[nodiscard]] std::shared_ptr<PageMemory> gpu() override { return gpu_memory; }
  [[nodiscard]] std::shared_ptr<PageMemory> pinned() override { return pinned_memory; }
  [[nodiscard]] Result<std::unique_ptr<PagedComposer>> make_composer(
      const PagedCache& where) override {
    return make_cpu_composer(where);
  }
  [[nodiscard]] Result<std::unique_ptr<PagedCapturer>> make_capturer(
      const PagedCache& where) override {
    return make_cpu_capturer(where);
  }

  const std::shared_ptr<FakeClock> streams = std::make_shared<FakeClock>();
  std::shared_ptr<FakePageMemory> gpu_memory;
  std::shared_ptr<FakePageMemory> pinned_memory;
};

/// "gpu" memory by itself.
[[nodiscard]] std::shared_ptr<FakePageMemory> make_fake_memory(
    std::string_view name, const PageLayout& layout, std::size_t n_pages,
    const std::shared_ptr<FakeClock>& clock);

}  // namespace inferscale::testing
