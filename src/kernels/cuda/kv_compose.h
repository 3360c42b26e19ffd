#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "inferscale/kv_kernels.h"
#include "kernels/cuda/device_tables.h"
#include "kernels/cuda/row_move.h"
#include "kernels/page_layout.h"
#include "kernels/paged_kernels.h"

namespace inferscale {

/// kv_compose on a device, for an engine that keeps its cache there: one launch a call
/// for all requests, layers, keys and values, which reads a table that the host has written. The
/// numbers are kv_compose's: values and unturned elements bit for bit when the codecs are equal,
/// turned ones within one rounding (and bit for bit what kv_compose gives on a processor with a
/// fused multiply-add). Converted NaNs stay NaNs but may lose their payload. One thread at a time.
class CudaComposer {
 public:
  /// For `cache`, whose pointers are the calling thread's device's, and `rope` of the same device.
  /// A call may place up to max_tokens (1 .. 2^24) tokens. Errors: kInvalidArgument (cache, pages,
  /// max_tokens, a shape or codec that cache and pages do not share), kUnsupported (elements of a
  /// head that are not contiguous, more tokens than one launch can have), kResourceExhausted,
  /// kUnavailable.
  [[nodiscard]] static Result<std::unique_ptr<CudaComposer>> create(
      std::shared_ptr<const cuda::DeviceRope> rope, const CacheLayout& cache,
      const PageLayout& pages, std::uint32_t max_tokens);

  /// The same with a rope table of its own on the device.
  [[nodiscard]] static Result<std::unique_ptr<CudaComposer>> create(
      std::shared_ptr<const RopeTable> table, const CacheLayout& cache, const PageLayout& pages,
      std::uint32_t max_tokens);

  /// Waits for the last calls' work.
  ~CudaComposer();
  CudaComposer(const CudaComposer&) = delete;
  CudaComposer& operator=(const CudaComposer&) = delete;

  /// Puts the placing of all items into `stream`: work that comes there later sees the rows. Pages
  /// must be there when the stream gets to it and stay until it is done. Waits for nothing, but
  /// for the oldest of the last kTables calls if none of them is done; allocates nothing. Errors:
  /// kInvalidArgument (too many tokens; a page, row or position out of range): nothing was put
  /// there; kInternal (the launch). Not to be recorded into a CUDA graph: the table is one call's.
  [[nodiscard]] Status compose(std::span<const PagedItem> items, void* stream);

  static constexpr std::size_t kTables = 8;

 private:
  CudaComposer() = default;
  [[nodiscard]] Status check(std::span<const PagedItem> items, std::uint32_t* n_tokens) const;
  [[nodiscard]] Status check_item(std::size_t index, const PagedItem& item) const;

  std::shared_ptr<const cuda::DeviceRope> rope_;
  PageLayout pages_;
  std::size_t n_rows_ = 0;
  std::uint32_t max_tokens_ = 0;
  cuda::RowMoves moves_;
  cuda::MoveKind kind_;
  cuda::Buffer layers_;
  cuda::TableRing tables_;
};

/// The table of tokens of a compose, as launch_moves reads it. REQUIRES: room for all tokens of all
/// items, positions below 2^24. For the composer and its tests.
void write_compose_table(std::span<const PagedItem> items, const PageLayout& pages,
                         cuda::MoveToken* table);

/// What a move must know about pages. For the composer and its tests.
void describe_pages(const PageLayout& pages, cuda::RowMoves* moves);

}  // namespace inferscale
