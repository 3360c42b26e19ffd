#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "inferscale/kv_record.h"
#include "inferscale/status.h"
#include "kernels/page_layout.h"

namespace inferscale {

/// A point in the work of a device that passes once everything that stood before it has been done.
/// 0 has always passed.
using DeviceTicket = std::uint64_t;

/// Tells how far the streams of one device have got. A stream is the engine's own handle (a
/// cudaStream_t), or null: the device's default stream. Thread-safe. One per device, shared by all
/// memories that it reads.
class DeviceClock {
 public:
  DeviceClock() = default;
  virtual ~DeviceClock() = default;
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  /// A ticket that passes when what has been put into `stream` until now has been done. Does not
  /// wait. Errors: kUnavailable (the device failed; nothing that was written is trusted any more),
  /// kResourceExhausted (too many that have not passed: those of a memory's copies have once
  /// PageMemory::settle returns).
  [[nodiscard]] virtual Result<DeviceTicket> mark(void* stream) = 0;
  /// Whether it has passed. Does not wait. False for ever once the device has failed: nobody can
  /// tell then what it still reads.
  [[nodiscard]] virtual bool passed(DeviceTicket ticket) = 0;
  /// Returns when it has passed; only erasing and ending wait. Errors: kUnavailable (the device
  /// failed).
  [[nodiscard]] virtual Status wait(DeviceTicket ticket) = 0;
};

/// One arena of equal pages that a device reads: its own memory, or pinned memory of the host;
/// plain memory where the tests or a machine without a device stand in for it. One allocation when
/// it is made, none later. Knows no records by name: which page is whose is PageTier's part.
///
/// **Order.** What a memory does to its pages (`write`, `copy`, `zero`) is done in the order of the
/// calls and beside the engine's streams: none of these calls waits for a stream, and none makes a
/// stream wait. The user of the pages ties the two together:
/// - Before work that reads pages is put into a stream, `publish(stream)`: that work then sees all
///   that was written before the call. Work that was put into the stream earlier does not.
/// - After it was put there, `DeviceClock::mark(stream)`. A page may be written, copied to or
///   zeroed again only after the tickets of all work that reads it have passed; the caller sees to
///   that, and a memory relies on it. So nobody waits on the way of a request: what has not passed
///   yet is not reused yet.
/// - Pages that nobody was given since they were last written need no ticket: the order of the
///   memory's own calls is enough.
///
/// **Failure.** After an error of `write` or `copy` with kUnavailable the pages that were named
/// hold anything: they may not be served, and are zeroed before they are used again. After one of
/// `publish` or `settle` nothing that was written is trusted any more.
///
/// Thread-safe; calls that name the same pages are ordered by the caller.
class PageMemory {
 public:
  PageMemory() = default;
  virtual ~PageMemory() = default;
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;

  /// "gpu", "pinned", "plain": static storage.
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual const PageLayout& layout() const = 0;
  [[nodiscard]] virtual std::size_t n_pages() const = 0;
  /// The address at which the device reads the page: a multiple of 64. Never changes.
  /// REQUIRES: page < n_pages().
  [[nodiscard]] virtual std::byte* page(std::uint32_t page) const = 0;

  /// Writes every byte of the pages, pages[i] as record_to_page(i) says. The record's bytes have
  /// been read when it returns. Errors: kInvalidArgument (check_paged_record, number of pages, a
  /// page that there is not) and kResourceExhausted (no staging memory is free just now): nothing
  /// was written; kUnavailable (the device failed).
  [[nodiscard]] virtual Status write(std::span<const std::uint32_t> pages,
                                     const Record& record) = 0;
  /// Writes every byte of pages[i] from sources[i], a page of the same layout at an address of the
  /// host. The sources stay readable and unchanged until the ticket, of the device's clock, has
  /// passed; after an error nothing reads them any more. Errors: as `write`.
  [[nodiscard]] virtual Result<DeviceTicket> copy(std::span<const std::uint32_t> pages,
                                                  std::span<const std::byte* const> sources) = 0;
  /// Every byte zero. Errors: kInvalidArgument, kUnavailable.
  [[nodiscard]] virtual Status zero(std::span<const std::uint32_t> pages) = 0;
  /// See Order. Errors: kUnavailable.
  [[nodiscard]] virtual Status publish(void* stream) = 0;

  /// These two wait, and are not for the way of a request.
  /// Returns when all that was written, copied and zeroed before is done, and nothing of what was
  /// written is left anywhere but in its pages: staging memory is zeroed. Errors: kUnavailable
  /// (something of it failed, or the device did).
  [[nodiscard]] virtual Status settle() = 0;
  /// What the page holds, after all that was done to it before. REQUIRES: `out` holds page_bytes().
  /// Errors: kInvalidArgument, kUnavailable.
  [[nodiscard]] virtual Status read(std::uint32_t page, std::span<std::byte> out) = 0;
};

/// Whether `pages` are pages of `memory`, `expected` of them. Errors: kInvalidArgument. For
/// implementations.
[[nodiscard]] Status check_pages(const PageMemory& memory, std::span<const std::uint32_t> pages,
                                 std::size_t expected);

/// A clock of work that is done before the call that starts it returns: every ticket has passed.
class ImmediateClock final : public DeviceClock {
 public:
  [[nodiscard]] Result<DeviceTicket> mark(void* /*stream*/) override { return DeviceTicket{0}; }
  [[nodiscard]] bool passed(DeviceTicket /*ticket*/) override { return true; }
  [[nodiscard]] Status wait(DeviceTicket /*ticket*/) override { return Status(); }
};

/// Pages in memory of the host, all calls done when they return. A derived class owns the memory.
class HostPageMemory : public PageMemory {
 public:
  [[nodiscard]] std::string_view name() const final { return name_; }
  [[nodiscard]] const PageLayout& layout() const final { return layout_; }
  [[nodiscard]] std::size_t n_pages() const final { return n_pages_; }
  [[nodiscard]] std::byte* page(std::uint32_t page) const final {
    return data_ + page * layout_.page_bytes();
  }
  [[nodiscard]] Status write(std::span<const std::uint32_t> pages, const Record& record) final;
  [[nodiscard]] Result<DeviceTicket> copy(std::span<const std::uint32_t> pages,
                                          std::span<const std::byte* const> sources) final;
  [[nodiscard]] Status zero(std::span<const std::uint32_t> pages) final;
  [[nodiscard]] Status publish(void* /*stream*/) final { return Status(); }
  [[nodiscard]] Status settle() final { return Status(); }
  [[nodiscard]] Status read(std::uint32_t page, std::span<std::byte> out) final;

 protected:
  /// Zeroes `data`, all pages of it.
  HostPageMemory(std::string_view name, const PageLayout& layout, std::size_t n_pages,
                 std::byte* data);
  /// Zeroes all of it. A derived class's destructor calls it before the memory goes.
  void wipe();

 private:
  const std::string_view name_;
  const PageLayout layout_;
  const std::size_t n_pages_;
  std::byte* const data_;
};

/// Plain memory of the host.
class PlainPageMemory final : public HostPageMemory {
 public:
  /// Errors: kInvalidArgument (layout, 0 or over 2^32 - 1 pages), kResourceExhausted (memory).
  [[nodiscard]] static Result<std::unique_ptr<PlainPageMemory>> create(std::string_view name,
                                                                       const PageLayout& layout,
                                                                       std::size_t n_pages);
  /// Zeroes all of it.
  ~PlainPageMemory() override;

 private:
  PlainPageMemory(std::string_view name, const PageLayout& layout, std::size_t n_pages,
                  std::byte* data)
      : HostPageMemory(name, layout, n_pages, data) {}
};

}  // namespace inferscale
