#include "engine/fake_kv.h"

#include <cstring>

#include "kernels/f16.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kHeadDim = 4;

/// A small integer, exact in f16, that differs between tokens, layers, keys and values, and
/// elements.
float element(TokenId token, std::uint32_t layer, bool value, std::size_t i) {
  const std::uint32_t mixed = static_cast<std::uint32_t>(token) * 5 + layer * 389 +
                              (value ? 97 : 0) + static_cast<std::uint32_t>(i) * 31;
  return static_cast<float>(mixed % 2039) - 1019;
}

float load(const std::byte* layer, std::size_t i, KvCodec codec) {
  if (codec == KvCodec::kF32) {
    float value = 0;
    std::memcpy(&value, layer + i * sizeof(value), sizeof(value));
    return value;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, layer + i * sizeof(half), sizeof(half));
  return kernels::float_from_f16(half);
}

void store(std::byte* layer, std::size_t i, KvCodec codec, float value) {
  if (codec == KvCodec::kF32) {
    std::memcpy(layer + i * sizeof(value), &value, sizeof(value));
    return;
  }
  const std::uint16_t half = kernels::f16_from_float(value);
  std::memcpy(layer + i * sizeof(half), &half, sizeof(half));
}

}  // namespace

bool can_fake_kv(KvCodec codec) { return codec == KvCodec::kF16 || codec == KvCodec::kF32; }

KvShape fake_kv_shape() { return {2, 1, kHeadDim, kHeadDim}; }

void fill_fake_kv(std::span<const TokenId> tokens, RecordBuilder& builder) {
  const KvCodec codec = builder.meta().codec;
  for (std::uint32_t layer = 0; layer < builder.meta().shape.n_layers; ++layer) {
    for (std::size_t i = 0; i < tokens.size() * kHeadDim; ++i) {
      const TokenId token = tokens[i / kHeadDim];
      store(builder.layer_k(layer), i, codec, element(token, layer, false, i % kHeadDim));
      store(builder.layer_v(layer), i, codec, element(token, layer, true, i % kHeadDim));
    }
  }
}

std::optional<std::size_t> find_wrong_kv(const Record& record) {
  const KvCodec codec = record.meta().codec;
  if (!can_fake_kv(codec)) {
    return 0;
  }
  for (std::uint32_t layer = 0; layer < record.meta().shape.n_layers; ++layer) {
    for (std::size_t i = 0; i < record.n_tokens() * std::size_t{kHeadDim}; ++i) {
      const TokenId token = record.token_ids()[i / kHeadDim];
      if (load(record.layer_k(layer), i, codec) != element(token, layer, false, i % kHeadDim) ||
          load(record.layer_v(layer), i, codec) != element(token, layer, true, i % kHeadDim)) {
        return i / kHeadDim;
      }
    }
  }
  return std::nullopt;
}

}  // namespace inferscale
