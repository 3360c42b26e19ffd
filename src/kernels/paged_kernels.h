#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "inferscale/kv_kernels.h"
#include "inferscale/kv_record.h"
#include "inferscale/model_spec.h"
#include "inferscale/status.h"
#include "kernels/page_layout.h"

/// Compose and capture on a device, for records that lie in pages (PageLayout) which the device can
/// read. A stream is the engine's own handle (a cudaStream_t), or null: the default stream.
namespace inferscale {

/// Tokens of one record and where they go: token first_token + i stands at position
/// first_position + i, in row rows[i] of the cache. Borrowed for the call, but for the pages, which
/// stay readable and unchanged until the work that was put into the stream has been done.
struct PagedItem {
  /// pages[p] holds tokens p * tokens_per_page and on; addresses that the device reads, also of
  /// different memories.
  std::span<const std::byte* const> pages;
  std::uint32_t first_token = 0;
  std::uint32_t n_tokens = 0;
  std::uint32_t first_position = 0;
  std::span<const std::uint32_t> rows;  ///< [n_tokens]
};

/// Places records in one cache. One thread at a time.
class PagedComposer {
 public:
  PagedComposer() = default;
  virtual ~PagedComposer() = default;
  PagedComposer(const PagedComposer&) = delete;
  PagedComposer& operator=(const PagedComposer&) = delete;

  /// Puts into `stream` the work that does what kv_compose does, for all items at once. Neither
  /// allocates nor waits for the device, but for a table of an earlier call that is still in use.
  /// Errors: kInvalidArgument (check_paged_items; more tokens than the composer was made for):
  /// nothing was put into the stream; kUnavailable (the device failed: rows of the items may hold
  /// anything).
  [[nodiscard]] virtual Status compose(std::span<const PagedItem> items, void* stream) = 0;
};

/// A run of tokens in a cache: token i stands at first_position + i, in row rows[i].
struct CaptureRun {
  std::uint32_t first_position = 0;
  std::span<const std::uint32_t> rows;  ///< borrowed for the call
};

/// What was read of a cache by one capture, on its way to the host. One thread at a time. At its
/// end the memory that it used is zeroed.
class CaptureBatch {
 public:
  CaptureBatch() = default;
  virtual ~CaptureBatch() = default;
  CaptureBatch(const CaptureBatch&) = delete;
  CaptureBatch& operator=(const CaptureBatch&) = delete;

  /// Returns when the bytes are there. Errors: kUnavailable (the device failed).
  [[nodiscard]] virtual Status wait() = 0;
  /// Fills the layers of `builder` with run number `run`: what kv_capture gives. REQUIRES: `wait`
  /// returned ok. Errors: kInvalidArgument (no such run; another number of tokens, shape or codec
  /// than it was captured with; rows that a scaled codec cannot hold).
  [[nodiscard]] virtual Status read(std::size_t run, RecordBuilder& builder) = 0;
};

/// Reads records from one cache. One thread at a time.
class PagedCapturer {
 public:
  PagedCapturer() = default;
  virtual ~PagedCapturer() = default;
  PagedCapturer(const PagedCapturer&) = delete;
  PagedCapturer& operator=(const PagedCapturer&) = delete;

  /// Puts into `stream` the work that reads the rows, takes the positions out of the keys and
  /// brings the result to the host, maybe in a stream of its own, for all runs at once. What is put
  /// into the stream later may change the rows. The batch may outlive the capturer. Errors:
  /// kInvalidArgument (check_capture_runs; more tokens than the capturer was made for),
  /// kResourceExhausted (too many batches are on their way): nothing was put into the stream;
  /// kUnavailable.
  [[nodiscard]] virtual Result<std::unique_ptr<CaptureBatch>> capture(
      std::span<const CaptureRun> runs, void* stream) = 0;
};

/// What a composer or capturer works on. The table is shared, what `cache` points to is the
/// engine's and outlives both.
struct PagedCache {
  std::shared_ptr<const RopeTable> table;
  CacheLayout cache;
  PageLayout pages;            ///< what a capture gives has its codec
  std::size_t max_tokens = 0;  ///< of one call
};

/// Errors: kInvalidArgument that names what does not fit: a page is missing, rows are not one per
/// token, rows or positions out of range, more than max_tokens tokens in all. For implementations.
[[nodiscard]] Status check_paged_items(std::span<const PagedItem> items, const PagedCache& where);
[[nodiscard]] Status check_capture_runs(std::span<const CaptureRun> runs, const PagedCache& where);
/// The cache against the table and the pages. Errors: kInvalidArgument.
[[nodiscard]] Status check_paged_cache(const PagedCache& where);

/// The twins for the CPU, which are the specification: the cache and the pages are memory of the
/// host, and the work is done when a call returns. Errors: those of check_paged_cache.
[[nodiscard]] Result<std::unique_ptr<PagedComposer>> make_cpu_composer(PagedCache where);
[[nodiscard]] Result<std::unique_ptr<PagedCapturer>> make_cpu_capturer(PagedCache where);

}  // namespace inferscale
