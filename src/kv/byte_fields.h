#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace inferscale {

// Token ids and elements are used in place, so a big-endian port would have to swap them all.
static_assert(std::endian::native == std::endian::little, "stored KV is little endian");

/// A field of a fixed header. REQUIRES: it lies within `bytes`.
template <typename T>
[[nodiscard]] T load_field(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

/// REQUIRES: `out` has room for the field.
template <typename T>
void store_field(std::byte* out, std::size_t offset, const T& value) {
  std::memcpy(out + offset, &value, sizeof(value));
}

}  // namespace inferscale
