#include "arrays.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "errors.h"

namespace inferscale::python {
namespace {

constexpr std::size_t kDimensions = 4;
constexpr std::size_t kMaxSize = 1024;  // of layers, heads, elements of a head, as KvShape's
constexpr std::size_t kMaxRows = std::size_t{1} << 24;

[[noreturn]] void refuse(const char* name, const std::string& what) {
  raise(invalid_argument(std::string(name) + " " + what));
}

KvCodec dtype_of(const char* name, const nb::dlpack::dtype& type) {
  const auto code = static_cast<nb::dlpack::dtype_code>(type.code);
  if (code == nb::dlpack::dtype_code::Bfloat) {
    raise(unsupported(std::string(name) +
                      " is bfloat16, which is not supported; supported are float16 and float32"));
  }
  if (code != nb::dlpack::dtype_code::Float || type.lanes != 1 ||
      (type.bits != 16 && type.bits != 32)) {
    throw nb::type_error((std::string(name) + " must be of float16 or float32").c_str());
  }
  return type.bits == 16 ? KvCodec::kF16 : KvCodec::kF32;
}

/// One of the two arrays, checked.
template <typename Byte>
struct Side {
  KvCodec dtype;
  std::size_t sizes[kDimensions];    // layers, rows, heads, elements
  std::size_t strides[kDimensions];  // bytes
  Byte* data;
};

template <typename Byte, typename Array>
Side<Byte> side_of(const char* name, const Array& array) {
  if (array.device_type() != nb::device::cpu::value) {
    raise(unsupported(std::string(name) + " is not in the memory of the host"));
  }
  Side<Byte> side{
      dtype_of(name, array.dtype()),
      {},
      {},
      static_cast<Byte*>(static_cast<std::conditional_t<std::is_const_v<Byte>, const void*, void*>>(
          array.data()))};
  if (array.ndim() != kDimensions) {
    refuse(name, "must have 4 dimensions [layers, tokens, heads, head_dim], not " +
                     std::to_string(array.ndim()));
  }
  const std::size_t element = codec_element_bytes(side.dtype);
  for (std::size_t i = 0; i < kDimensions; ++i) {
    side.sizes[i] = array.shape(i);
    if (side.sizes[i] > (i == 1 ? kMaxRows : kMaxSize)) {
      refuse(name, "has too many layers, tokens, heads or elements of a head");
    }
    const std::int64_t stride = array.stride(i);
    if (stride < 0) {
      refuse(name, "must not have negative strides");
    }
    side.strides[i] = static_cast<std::size_t>(stride) * element;
  }
  if (side.sizes[3] > 1 && side.strides[3] != element) {
    refuse(name, "must have the elements of a head next to each other");
  }
  return side;
}

template <typename Byte>
BasicCacheLayout<Byte> join(const Side<Byte>& k, const Side<Byte>& v) {
  if (k.dtype != v.dtype) {
    refuse("k", "and v must have the same element type");
  }
  if (!std::equal(k.sizes, k.sizes + 3, v.sizes)) {
    refuse("k", "and v must have the same numbers of layers, tokens and heads");
  }
  BasicCacheLayout<Byte> cache;
  cache.dtype = k.dtype;
  cache.shape = {static_cast<std::uint32_t>(k.sizes[0]), static_cast<std::uint32_t>(k.sizes[2]),
                 static_cast<std::uint32_t>(k.sizes[3]), static_cast<std::uint32_t>(v.sizes[3])};
  cache.n_rows = k.sizes[1];
  for (std::size_t layer = 0; layer < k.sizes[0]; ++layer) {
    cache.k.push_back(k.data + layer * k.strides[0]);
    cache.v.push_back(v.data + layer * v.strides[0]);
  }
  cache.k_strides.row = k.strides[1];
  cache.k_strides.head = k.strides[2];
  cache.v_strides.row = v.strides[1];
  cache.v_strides.head = v.strides[2];
  return cache;
}

}  // namespace

CacheLayout writable_cache(const nb::ndarray<>& k, const nb::ndarray<>& v) {
  return join(side_of<std::byte>("k", k), side_of<std::byte>("v", v));
}

ConstCacheLayout readable_cache(const nb::ndarray<nb::ro>& k, const nb::ndarray<nb::ro>& v) {
  return join(side_of<const std::byte>("k", k), side_of<const std::byte>("v", v));
}

}  // namespace inferscale::python
