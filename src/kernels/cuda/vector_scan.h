#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "kernels/cuda/device_tables.h"
#include "kernels/cuda/vector_scan_kernels.h"

namespace inferscale {

/// The vectors that one query is compared with: rows first .. first + count - 1.
struct ScanScope {
  std::uint64_t first = 0;
  std::uint32_t count = 0;
};

/// Vectors in device memory and exact searches among them: vector_scan for a batch of queries, each
/// over a range of its own. Products and sums are fp32, in another order than vector_scan's: scores
/// agree within its rounding, and hits where scores do not tie within it. Equal scores come by
/// lower index; NaN scores are never returned. One thread at a time.
class CudaVectorScan {
 public:
  static constexpr std::size_t kMaxK = 1024;
  static constexpr std::size_t kMaxQueries = 4096;
  static constexpr std::size_t kMaxDim = 8192;

  struct Options {
    std::size_t dim = 0;            ///< 1 .. kMaxDim
    KvCodec dtype = KvCodec::kF32;  ///< how vectors are kept: f32 or f16
    std::uint64_t capacity = 0;     ///< vectors there is room for; 1 .. 2^32 - 1
    std::size_t max_queries = 1;    ///< of a search; 1 .. kMaxQueries
    std::size_t max_k = 64;         ///< 1 .. kMaxK
    /// Vectors that all scopes of a search have together, at most; 0: capacity * max_queries.
    std::uint64_t max_scanned = 0;
  };

  /// On the calling thread's device. All vectors are zero at first. Errors: kInvalidArgument
  /// (options), kResourceExhausted, kUnavailable.
  [[nodiscard]] static Result<std::unique_ptr<CudaVectorScan>> create(const Options& options);
  ~CudaVectorScan();
  CudaVectorScan(const CudaVectorScan&) = delete;
  CudaVectorScan& operator=(const CudaVectorScan&) = delete;

  /// Puts rows first .. there, rounded to the dtype, and returns when they are. Errors:
  /// kInvalidArgument (not whole rows, beyond the capacity), kResourceExhausted, kUnavailable.
  [[nodiscard]] Status write(std::uint64_t first, std::span<const float> vectors);

  /// Puts a search into `stream` and does not wait for it: queries [scopes.size()][dim]. The last
  /// search must have been finished. Errors: kInvalidArgument (sizes, a scope beyond the capacity,
  /// k outside 1 .. max_k): nothing was put there; kConflict (the last search was not finished),
  /// kInternal.
  [[nodiscard]] Status start(std::span<const float> queries, std::span<const ScanScope> scopes,
                             std::size_t k, void* stream);
  /// Waits for the search. Per query the hits, best first, min(k, count) of them unless scores are
  /// NaN; indices count from the scope's first. Errors: kConflict (none was started), kInternal.
  [[nodiscard]] Result<std::vector<std::vector<ScanHit>>> finish();

 private:
  CudaVectorScan() = default;
  struct Table;
  [[nodiscard]] Status check(std::span<const float> queries, std::span<const ScanScope> scopes,
                             std::size_t k) const;
  void write_queries(std::span<const float> queries, std::span<const ScanScope> scopes,
                     std::uint32_t per_block, const Table& host) const;
  /// The later passes, with their numbers of blocks in the table.
  [[nodiscard]] std::vector<cuda::SelectPass> plan_selects(std::size_t n_queries, std::size_t k,
                                                           std::uint32_t kept, const Table& host,
                                                           const Table& device) const;
  [[nodiscard]] Table table_at(const std::byte* base, std::size_t n_queries) const;

  int device_ = 0;
  Options options_;
  std::size_t row_elements_ = 0;  // of a stored vector: dim, up to a multiple of 16 bytes
  cuda::Buffer vectors_;
  cuda::Buffer tables_;  // pinned: queries, scopes, numbers of blocks
  cuda::Buffer device_tables_;
  cuda::Buffer keys_[2];  // candidates, from one pass to the next
  cuda::Buffer hits_;     // pinned
  cuda::Event done_;
  std::size_t started_queries_ = 0;  // 0: no search is in flight
  std::size_t started_k_ = 0;
};

}  // namespace inferscale
