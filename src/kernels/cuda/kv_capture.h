#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "kernels/cuda/device_tables.h"
#include "kernels/cuda/row_move.h"
#include "kernels/paged_kernels.h"
#include "kernels/staging_ring.h"

namespace inferscale {

/// Reads rows of an engine's cache on a device, turns the keys back and brings them to the host in
/// the layout of records: a launch a batch in the engine's stream, and a copy in a stream of its
/// own, without waiting. The numbers are kv_capture's: unturned elements bit for bit when the
/// codecs are equal, turned ones within one rounding. `start` is called by one thread at a time;
/// the calls for a batch by one thread at a time, which may be another.
class CudaCapturer {
 public:
  /// Names a batch until it is released.
  using Batch = std::uint64_t;

  struct Options {
    KvCodec codec = KvCodec::kBf16;  ///< of the records
    std::uint32_t max_tokens = 0;    ///< of a batch, all runs together; 1 .. 2^24
    std::uint32_t max_runs = 64;     ///< of a batch; 1 .. 2^16
    std::uint32_t max_batches = 64;  ///< that may be in flight or unread at a time; 1 .. 64
  };

  /// For `cache`, whose pointers are the calling thread's device's, and `rope` of the same device.
  /// Memory: twice the largest batch's keys and values, on the device and pinned; batches of one
  /// half of it in all always fit when they are released in order. Errors: kInvalidArgument (cache,
  /// options), kUnsupported (elements of a head that are not contiguous), kResourceExhausted,
  /// kUnavailable.
  [[nodiscard]] static Result<std::unique_ptr<CudaCapturer>> create(
      std::shared_ptr<const cuda::DeviceRope> rope, const ConstCacheLayout& cache,
      const Options& options);
  ~CudaCapturer();
  CudaCapturer(const CudaCapturer&) = delete;
  CudaCapturer& operator=(const CudaCapturer&) = delete;

  /// Puts the capture of all runs into `stream`: it sees what stood there before, and the rows may
  /// be overwritten by what comes after. Does not wait. Errors: kInvalidArgument (no rows, too
  /// many, a row or position out of range): nothing was put there; kResourceExhausted (max_batches,
  /// or too many bytes, are not released yet), kUnavailable, kInternal (the launch).
  [[nodiscard]] Result<Batch> start(std::span<const CaptureRun> runs, void* stream);

  /// Whether the batch's bytes are on the host. Errors: kNotFound (no such batch), kInternal.
  [[nodiscard]] Result<bool> ready(Batch batch) const;
  /// Returns when they are. Errors: as `ready`.
  [[nodiscard]] Status wait(Batch batch) const;
  /// Copies run number `run` of a batch that is ready into the builder's layers. Errors: kNotFound
  /// (batch, run), kInvalidArgument (the builder has another shape, codec or number of tokens; rows
  /// that a scaled codec cannot hold).
  [[nodiscard]] Status fill(Batch batch, std::size_t run, RecordBuilder& builder) const;
  /// Zeroes the batch's bytes and makes room for another; REQUIRES: it is ready.
  void release(Batch batch);

 private:
  struct Place {  // of a run in a batch's bytes
    std::size_t offset = 0;
    std::uint32_t n_tokens = 0;
  };
  struct Slot {
    Batch batch = 0;         // 0: free
    std::size_t offset = 0;  // of its bytes in both memories
    std::size_t bytes = 0;
    std::vector<Place> runs;
    cuda::Event read;  // the rows may change
    cuda::Event done;  // the bytes are on the host
  };

  CudaCapturer() = default;
  [[nodiscard]] Status check(std::span<const CaptureRun> runs, std::uint32_t* n_tokens) const;
  [[nodiscard]] std::size_t layer_bytes(std::uint32_t n_tokens) const;
  [[nodiscard]] std::size_t v_offset(std::uint32_t n_tokens) const;
  [[nodiscard]] std::size_t scales_offset(std::uint32_t n_tokens) const;  // of K, then V
  [[nodiscard]] Result<Slot*> take_slot(std::span<const CaptureRun> runs);
  void free_slot(Slot* slot);
  [[nodiscard]] Status launch(const cuda::RowMoves& moves, Slot* slot, void* stream);
  void write_tables(std::span<const CaptureRun> runs, std::byte* table, const Slot& slot) const;
  [[nodiscard]] const Slot* find(Batch batch) const;

  int device_ = 0;
  std::shared_ptr<const cuda::DeviceRope> rope_;
  KvShape shape_;
  std::size_t n_rows_ = 0;
  Options options_;
  cuda::RowMoves moves_;
  cuda::MoveKind kind_;
  cuda::Buffer layers_;
  cuda::TableRing tables_;
  cuda::Buffer device_bytes_;
  cuda::Buffer host_bytes_;
  cuda::Stream copies_;
  mutable std::mutex mutex_;  // of ring_, last_batch_ and which slots are free
  StagingRing ring_;
  std::vector<Slot> slots_;
  Batch last_batch_ = 0;
};

}  // namespace inferscale
