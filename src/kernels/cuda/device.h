#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "inferscale/status.h"

/// Owners of what the CUDA runtime gives out. Headers here compile without CUDA's: a stream is a
/// `void*` (a cudaStream_t; null is the default stream).
namespace inferscale::cuda {

/// How many devices this process can use; 0 without a driver.
[[nodiscard]] int device_count();

/// The device of the calling thread. Errors: kUnavailable (no device, no driver).
[[nodiscard]] Result<int> current_device();

/// "NVIDIA H200, sm_90, 132 multiprocessors". Errors: as current_device.
[[nodiscard]] Result<std::string> device_name(int device);

/// kOk, or the error of the CUDA runtime: kResourceExhausted (memory), kUnavailable (no device, no
/// driver, no code for this device), else kInternal. `what` says what was tried.
[[nodiscard]] Status status_of(int cuda_error, const char* what);

/// Makes `device` the calling thread's device, and the former one again at the end.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;  // -1: nothing to undo
};

/// Where a Buffer's bytes lie.
enum class MemoryKind : std::uint8_t {
  kDevice,  ///< the device's own memory
  kPinned,  ///< page-locked host memory that the device can read and write at the same address
};

/// Memory that is freed at the end. Movable; a moved-from buffer is empty. Content is undefined
/// until written.
class Buffer {
 public:
  Buffer() = default;
  /// 256-byte aligned. Zero bytes give an empty buffer. Errors: kResourceExhausted, kUnavailable.
  [[nodiscard]] static Result<Buffer> allocate(MemoryKind kind, std::size_t size);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] MemoryKind kind() const { return kind_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
};

/// A point in a stream. Movable.
class Event {
 public:
  Event() = default;
  /// Without timing. Errors: kUnavailable.
  [[nodiscard]] static Result<Event> create();
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;

  /// After everything that `stream` holds now.
  [[nodiscard]] Status record(void* stream);
  /// True when what stood before the last `record` is done, or nothing was recorded.
  [[nodiscard]] Result<bool> passed() const;
  /// Blocks until then. Errors: what the work before it failed with.
  [[nodiscard]] Status wait() const;
  /// What comes into `stream` from now on waits until then; the caller does not.
  [[nodiscard]] Status hold(void* stream) const;

 private:
  void* event_ = nullptr;
};

/// A stream of its own, which does not wait for the default stream. Movable.
class Stream {
 public:
  Stream() = default;
  [[nodiscard]] static Result<Stream> create();
  ~Stream();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept;

  [[nodiscard]] void* get() const { return stream_; }
  [[nodiscard]] Status synchronize() const;

 private:
  void* stream_ = nullptr;
};

/// In stream order, between any two places that the device can reach. The call returns before the
/// bytes are there when host memory is pinned.
[[nodiscard]] Status copy_async(void* to, const void* from, std::size_t size, void* stream);
/// Zeros, in stream order.
[[nodiscard]] Status zero_async(void* at, std::size_t size, void* stream);
/// Waits for everything in `stream`. For tests and tools; nothing per request does.
[[nodiscard]] Status synchronize(void* stream);

}  // namespace inferscale::cuda
