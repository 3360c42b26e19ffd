#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "inferscale/kv_kernels.h"

namespace inferscale::python {

namespace nb = nanobind;

/// Keys and values [layers, tokens, heads, head_dim] that Python lends for a call, f16 or f32, in
/// the memory of the host. Any strides that are not negative, but the elements of a head must be
/// contiguous. The views are valid while the arrays are. Raise ValueError (dimensions, strides),
/// TypeError (element type) or NotImplementedError (bfloat16, a device). They need the GIL.
[[nodiscard]] CacheLayout writable_cache(const nb::ndarray<>& k, const nb::ndarray<>& v);
[[nodiscard]] ConstCacheLayout readable_cache(const nb::ndarray<nb::ro>& k,
                                              const nb::ndarray<nb::ro>& v);

}  // namespace inferscale::python
