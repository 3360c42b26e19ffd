#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv_rows.h"

namespace inferscale::kernels {

/// One long run through convert_rows.
template <typename To, typename From>
std::vector<To> converted(const std::vector<From>& from, KvCodec from_codec, KvCodec to_codec) {
  std::vector<To> to(from.size());
  RowMove move;
  move.source.base = reinterpret_cast<const std::byte*>(from.data());
  move.target.base = reinterpret_cast<std::byte*>(to.data());
  move.source_codec = from_codec;
  move.target_codec = to_codec;
  move.n_tokens = 1;
  move.n_heads = 1;
  move.head_dim = from.size();
  convert_rows(move);
  return to;
}

/// Every pattern of 16 bits.
inline std::vector<std::uint16_t> every_half() {
  std::vector<std::uint16_t> halves(0x10000);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<std::uint16_t>(i);
  }
  return halves;
}

}  // namespace inferscale::kernels
