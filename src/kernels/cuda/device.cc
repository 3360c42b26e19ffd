#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>

namespace inferscale::cuda {
namespace {

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

Status status_of(cudaError_t error, const char* what) {
  return cuda::status_of(static_cast<int>(error), what);
}

}  // namespace

Status status_of(int cuda_error, const char* what) {
  const auto error = static_cast<cudaError_t>(cuda_error);
  if (error == cudaSuccess) {
    return Status();
  }
  const std::string message = std::string(what) + ": " + cudaGetErrorString(error);
  switch (error) {
    case cudaErrorMemoryAllocation:
      return resource_exhausted(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorInitializationError:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInvalidDevice:
      return unavailable(message);
    default:
      return internal_error(message);
  }
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();  // else the next launch check would report it
    return 0;
  }
  return count;
}

Result<int> current_device() {
  if (device_count() == 0) {
    return unavailable("there is no CUDA device that this process can use");
  }
  int device = 0;
  INFERSCALE_RETURN_IF_ERROR(status_of(cudaGetDevice(&device), "current CUDA device"));
  return device;
}

Result<std::string> device_name(int device) {
  cudaDeviceProp properties{};
  INFERSCALE_RETURN_IF_ERROR(
      status_of(cudaGetDeviceProperties(&properties, device), "properties of a CUDA device"));
  return std::string(properties.name) + ", sm_" + std::to_string(properties.major) +
         std::to_string(properties.minor) + ", " + std::to_string(properties.multiProcessorCount) +
         " multiprocessors";
}

DeviceScope::DeviceScope(int device) {
  int now = -1;
  if (cudaGetDevice(&now) == cudaSuccess && now != device && cudaSetDevice(device) == cudaSuccess) {
    before_ = now;
  }
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) {
    (void)cudaSetDevice(before_);
  }
}

Result<Buffer> Buffer::allocate(MemoryKind kind, std::size_t size) {
  Buffer buffer;
  buffer.kind_ = kind;
  if (size == 0) {
    return buffer;
  }
  void* data = nullptr;
  const bool device = kind == MemoryKind::kDevice;
  const cudaError_t error =
      device ? cudaMalloc(&data, size) : cudaHostAlloc(&data, size, cudaHostAllocPortable);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return status_of(error, device ? "allocating device memory" : "allocating pinned memory")
        .with_context(std::to_string(size) + " bytes");
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = size;
  return buffer;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    (void)(kind_ == MemoryKind::kDevice ? cudaFree(data_) : cudaFreeHost(data_));
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      kind_(other.kind_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(kind_, other.kind_);
  return *this;
}

Result<Event> Event::create() {
  cudaEvent_t event = nullptr;
  INFERSCALE_RETURN_IF_ERROR(
      status_of(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating a CUDA event"));
  Event owner;
  owner.event_ = event;
  return owner;
}

Event::~Event() {
  if (event_ != nullptr) {
    (void)cudaEventDestroy(static_cast<cudaEvent_t>(event_));
  }
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

Status Event::record(void* stream) {
  return status_of(cudaEventRecord(static_cast<cudaEvent_t>(event_), as_stream(stream)),
                   "recording a CUDA event");
}

Result<bool> Event::passed() const {
  const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event_));
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  INFERSCALE_RETURN_IF_ERROR(status_of(error, "work before a CUDA event"));
  return true;
}

Status Event::wait() const {
  return status_of(cudaEventSynchronize(static_cast<cudaEvent_t>(event_)),
                   "work before a CUDA event");
}

Status Event::hold(void* stream) const {
  return status_of(cudaStreamWaitEvent(as_stream(stream), static_cast<cudaEvent_t>(event_), 0),
                   "making a CUDA stream wait");
}

Result<Stream> Stream::create() {
  cudaStream_t stream = nullptr;
  INFERSCALE_RETURN_IF_ERROR(status_of(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                       "creating a CUDA stream"));
  Stream owner;
  owner.stream_ = stream;
  return owner;
}

Stream::~Stream() {
  if (stream_ != nullptr) {
    (void)cudaStreamDestroy(as_stream(stream_));
  }
}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

Status Stream::synchronize() const { return cuda::synchronize(stream_); }

Status copy_async(void* to, const void* from, std::size_t size, void* stream) {
  return status_of(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, as_stream(stream)),
                   "copying to or from a CUDA device");
}

Status zero_async(void* at, std::size_t size, void* stream) {
  return status_of(cudaMemsetAsync(at, 0, size, as_stream(stream)), "zeroing device memory");
}

Status synchronize(void* stream) {
  return status_of(cudaStreamSynchronize(as_stream(stream)), "work in a CUDA stream");
}

}  // namespace inferscale::cuda
