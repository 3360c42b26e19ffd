#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "model/gguf_model.h"

/// A model file is data from anywhere: whatever is in it, reading its metadata ends in a Status
/// that is text, or in a description that the engine may rely on.

namespace {

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

// Tensors follow the metadata. Seeds leave their bytes out; zeros stand for them.
constexpr std::size_t kTensorBytes = std::size_t{24} << 10;

/// One file in memory for all runs.
int memory_file() {
  static const int descriptor = ::memfd_create("model", MFD_CLOEXEC);
  return descriptor;
}

/// `data` and zeros behind it. The pages stay: only what an earlier input left is overwritten.
bool fill(int descriptor, const std::uint8_t* data, std::size_t size) {
  static constexpr std::uint8_t kZeros[kTensorBytes] = {};
  static std::size_t written = 0;
  for (std::size_t at = size; at < written; at += kTensorBytes) {
    const std::size_t n = std::min(written - at, kTensorBytes);
    if (::pwrite(descriptor, kZeros, n, static_cast<off_t>(at)) != static_cast<ssize_t>(n)) {
      return false;
    }
  }
  written = size;
  return ::pwrite(descriptor, data, size, 0) == static_cast<ssize_t>(size) &&
         ::ftruncate(descriptor, static_cast<off_t>(size + kTensorBytes)) == 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int descriptor = memory_file();
  if (descriptor < 0 || !fill(descriptor, data, size)) {
    return 0;
  }
  const auto spec = inferscale::read_model_spec("/proc/self/fd/" + std::to_string(descriptor), {});
  if (!spec.ok()) {
    require(!spec.status().message().empty());
    return 0;
  }
  const inferscale::KvShape& shape = spec->shape;
  require(shape.n_layers > 0 && shape.n_kv_heads > 0 && shape.head_dim_k > 0);
  require(spec->fingerprint != inferscale::Hash128());
  return 0;
}
