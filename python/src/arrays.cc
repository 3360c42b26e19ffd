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
  if (code == nb::dlpack::dtype_code::Bfloat && type.lanes == 1 && type.bits == 16) {
    return KvCodec::kBf16;
  }
  if (code != nb::dlpack::dtype_code::Float || type.lanes != 1 ||
      (type.bits != 16 && type.bits != 32)) {
    throw nb::type_error((std::string(name) + " must be of float16, bfloat16 or float32").c_str());
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
Side<Byte> side_of(const char* name, const Array& array, std::size_t max_first = kMaxSize) {
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
    refuse(name, "must have 4 dimensions, [layers or blocks, tokens, heads, head_dim], not " +
                     std::to_string(array.ndim()));
  }
  const std::size_t element = codec_element_bytes(side.dtype);
  for (std::size_t i = 0; i < kDimensions; ++i) {
    side.sizes[i] = array.shape(i);
    if (side.sizes[i] > (i == 0 ? max_first : i == 1 ? kMaxRows : kMaxSize)) {
      refuse(name, "has too many layers, blocks, tokens, heads or elements of a head");
    }
    const std::int64_t stride = array.stride(i);
    if (stride < 0) {
      refuse(name, "must not have negative strides");
    }
    side.strides[i] = static_cast<std::size_t>(stride) * element;
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
  cache.k_strides = {k.strides[1], k.strides[2], k.strides[3]};
  cache.v_strides = {v.strides[1], v.strides[2], v.strides[3]};
  return cache;
}

/// A layer of an engine's cache: the first dimension is blocks.
void check_layer(const Side<std::byte>& k, const Side<std::byte>& v, const Side<std::byte>& first_k,
                 const Side<std::byte>& first_v) {
  const auto same = [](const Side<std::byte>& a, const Side<std::byte>& b) {
    return a.dtype == b.dtype && std::equal(a.sizes, a.sizes + kDimensions, b.sizes) &&
           std::equal(a.strides, a.strides + kDimensions, b.strides);
  };
  if (!same(k, first_k) || !same(v, first_v)) {
    refuse("k", "and v must lie alike in every layer");
  }
  if (k.dtype != v.dtype || !std::equal(k.sizes, k.sizes + 3, v.sizes)) {
    refuse("k", "and v must have the same element type and numbers of blocks, tokens and heads");
  }
}

CacheStrides strides_of(const Side<std::byte>& side) {
  return {side.strides[1], side.strides[2], side.strides[3], side.strides[0]};
}

}  // namespace

EngineCache::EngineCache(const std::vector<std::pair<nb::ndarray<>, nb::ndarray<>>>& layers)
    : layers_(layers) {
  if (layers.empty() || layers.size() > kMaxSize) {
    refuse("layers", "must be 1 to " + std::to_string(kMaxSize));
  }
  const auto first_k = side_of<std::byte>("k", layers.front().first, kMaxRows);
  const auto first_v = side_of<std::byte>("v", layers.front().second, kMaxRows);
  for (const auto& [k_array, v_array] : layers) {
    const auto k = side_of<std::byte>("k", k_array, kMaxRows);
    const auto v = side_of<std::byte>("v", v_array, kMaxRows);
    check_layer(k, v, first_k, first_v);
    writable_.k.push_back(k.data);
    writable_.v.push_back(v.data);
    readable_.k.push_back(k.data);
    readable_.v.push_back(v.data);
  }
  writable_.dtype = first_k.dtype;
  writable_.shape = {
      static_cast<std::uint32_t>(layers.size()), static_cast<std::uint32_t>(first_k.sizes[2]),
      static_cast<std::uint32_t>(first_k.sizes[3]), static_cast<std::uint32_t>(first_v.sizes[3])};
  writable_.k_strides = strides_of(first_k);
  writable_.v_strides = strides_of(first_v);
  writable_.rows_per_block = first_k.sizes[1];
  writable_.n_rows = first_k.sizes[0] * first_k.sizes[1];
  readable_.dtype = writable_.dtype;
  readable_.shape = writable_.shape;
  readable_.k_strides = writable_.k_strides;
  readable_.v_strides = writable_.v_strides;
  readable_.rows_per_block = writable_.rows_per_block;
  readable_.n_rows = writable_.n_rows;
}

CacheLayout writable_cache(const nb::ndarray<>& k, const nb::ndarray<>& v) {
  return join(side_of<std::byte>("k", k), side_of<std::byte>("v", v));
}

ConstCacheLayout readable_cache(const nb::ndarray<nb::ro>& k, const nb::ndarray<nb::ro>& v) {
  return join(side_of<const std::byte>("k", k), side_of<const std::byte>("v", v));
}

}  // namespace inferscale::python
