#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <utility>
#include <vector>

#include "inferscale/kv_kernels.h"

namespace inferscale::python {

namespace nb = nanobind;

/// Keys and values [layers, tokens, heads, head_dim] that Python lends for a call, f16, bf16 or
/// f32, in the memory of the host. Any strides that are not negative. The views are valid while the
/// arrays are. Raise ValueError (dimensions, strides), TypeError (element type) or
/// NotImplementedError (a device). They need the GIL.
[[nodiscard]] CacheLayout writable_cache(const nb::ndarray<>& k, const nb::ndarray<>& v);
[[nodiscard]] ConstCacheLayout readable_cache(const nb::ndarray<nb::ro>& k,
                                              const nb::ndarray<nb::ro>& v);

/// An engine's cache, layer by layer: keys and values [blocks, tokens of a block, heads, head_dim],
/// in any order in memory, the same in every layer. Keeps the arrays, which Python must keep as
/// they are. Making and ending one needs the GIL. Raises as above.
class EngineCache {
 public:
  explicit EngineCache(const std::vector<std::pair<nb::ndarray<>, nb::ndarray<>>>& layers);

  [[nodiscard]] const CacheLayout& writable() const { return writable_; }
  [[nodiscard]] const ConstCacheLayout& readable() const { return readable_; }

 private:
  std::vector<std::pair<nb::ndarray<>, nb::ndarray<>>> layers_;
  CacheLayout writable_;
  ConstCacheLayout readable_;
};

}  // namespace inferscale::python
