#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "kernels/cuda/device.h"

namespace inferscale::cuda {

/// The cosines, sines and key bias of a RopeTable, in device memory. Immutable: any number of
/// composers and capturers of its device may share it.
class DeviceRope {
 public:
  /// To the calling thread's device; returns when they are there. Memory: max_positions *
  /// rotary_dim * 4 bytes, and 4 for each element of the bias. REQUIRES: table is not null. Errors:
  /// kResourceExhausted, kUnavailable.
  [[nodiscard]] static Result<std::shared_ptr<const DeviceRope>> upload(
      std::shared_ptr<const RopeTable> table);

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] const RopeTable& table() const { return *table_; }
  [[nodiscard]] const float* cos() const { return reinterpret_cast<const float*>(cos_.data()); }
  [[nodiscard]] const float* sin() const { return reinterpret_cast<const float*>(sin_.data()); }
  /// Null where the table has none.
  [[nodiscard]] const float* key_bias() const {
    return reinterpret_cast<const float*>(key_bias_.data());
  }

 private:
  DeviceRope() = default;
  int device_ = 0;
  std::shared_ptr<const RopeTable> table_;
  Buffer cos_;
  Buffer sin_;
  Buffer key_bias_;
};

/// A cache's pointers as a move wants them: [2 n_layers], K and then V; in device memory.
[[nodiscard]] Result<Buffer> upload_layers(const ConstCacheLayout& cache);

/// Tables that the host writes for one launch each, in pinned memory: the device reads them where
/// they are, which was measured to cost less than a copy before the launch at every size. A table's
/// place is used again once the launch that read it is done.
class TableRing {
 public:
  /// `slots` tables of `bytes` each. Errors: kResourceExhausted, kUnavailable.
  [[nodiscard]] static Result<TableRing> create(std::size_t slots, std::size_t bytes);

  /// The next table, to be written now; 256-byte aligned. Waits only when all are still in use, by
  /// launches of which the oldest is waited for. Errors: what that work failed with.
  [[nodiscard]] Result<std::byte*> next();
  /// Says that everything that reads the table of the last `next` has been put into the stream.
  [[nodiscard]] Status release(void* stream);
  /// Returns when nothing reads any of the tables any more.
  void drain() const;

 private:
  std::size_t slot_bytes_ = 0;
  std::size_t current_ = 0;
  Buffer tables_;
  std::vector<Event> used_;
};

}  // namespace inferscale::cuda
