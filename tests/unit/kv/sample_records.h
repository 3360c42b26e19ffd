#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "inferscale/kv_record.h"
#include "kv/record_format.h"

/// Records with known content for the tests of the codec, the tiers and the store.
namespace inferscale::testing {

inline Hash128 hash_of(std::uint8_t fill) {
  Hash128 hash;
  hash.bytes.fill(std::byte{fill});
  return hash;
}

inline RecordKey key_of(std::uint32_t number) {
  return RecordKey{sha256_128(std::as_bytes(std::span(&number, 1)))};
}

/// The record of docs/format.md's example: two tokens, one layer of one head of two elements, f16.
inline std::shared_ptr<const Record> make_tiny_record() {
  RecordMeta meta;
  meta.model_fingerprint = hash_of(0x11);
  meta.context_id = hash_of(0x22);
  meta.scope = hash_of(0x33);
  meta.context_kind = ContextKind::kWindow;
  meta.codec = KvCodec::kF16;
  meta.shape = {1, 1, 2, 2};
  const TokenId tokens[] = {1, 300};
  RecordBuilder builder = std::move(RecordBuilder::create(meta, tokens)).value();
  const std::uint16_t k[] = {0x3C00, 0xC000, 0x3800, 0x0000};  // 1, -2; 0.5, 0
  const std::uint16_t v[] = {0x4200, 0xBC00, 0x3400, 0x7BFF};  // 3, -1; 0.25, 65504
  std::memcpy(builder.layer_k(0), k, sizeof(k));
  std::memcpy(builder.layer_v(0), v, sizeof(v));
  return std::move(builder).seal();
}

struct SampleOptions {
  KvCodec codec = KvCodec::kF16;
  KvShape shape{2, 2, 4, 2};
  std::uint32_t n_tokens = 3;
  std::uint8_t scope = 0x33;
  std::uint32_t seed = 1;  ///< changes token ids and content
};

inline std::vector<TokenId> sample_tokens(const SampleOptions& options) {
  std::vector<TokenId> tokens(options.n_tokens);
  for (std::uint32_t i = 0; i < options.n_tokens; ++i) {
    tokens[i] = static_cast<TokenId>((options.seed * 7919 + i * 31) % 49152);
  }
  return tokens;
}

inline RecordMeta sample_meta(const SampleOptions& options) {
  RecordMeta meta;
  meta.model_fingerprint = hash_of(0x11);
  meta.context_id = hash_of(0x22);
  meta.scope = hash_of(options.scope);
  meta.codec = options.codec;
  meta.shape = options.shape;
  return meta;
}

/// Content is a fixed function of the options, the same on every machine.
inline std::shared_ptr<const Record> make_record(const SampleOptions& options = {}) {
  const RecordMeta meta = sample_meta(options);
  RecordBuilder builder = std::move(RecordBuilder::create(meta, sample_tokens(options))).value();
  std::uint32_t state = options.seed * 2654435761U + 1;
  const auto fill = [&](std::byte* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
      state = state * 1664525U + 1013904223U;
      data[i] = static_cast<std::byte>(state >> 24);
      if (options.codec == KvCodec::kFp8E4m3 && (data[i] | std::byte{0x80}) == std::byte{0xFF}) {
        data[i] = std::byte{0};  // which is no NaN
      }
    }
  };
  for (std::uint32_t layer = 0; layer < options.shape.n_layers; ++layer) {
    for (const KvPart part : {KvPart::kK, KvPart::kV}) {
      const std::size_t size = part_bytes(options.shape, options.codec, part, options.n_tokens);
      fill(builder.layer_part(layer, part), size);
      const std::size_t dim =
          part == KvPart::kK ? options.shape.head_dim_k : options.shape.head_dim_v;
      const std::size_t head = codec_head_bytes(options.codec, dim);
      for (std::size_t end = head; options.codec == KvCodec::kQ4 && dim % 2 == 1 && end <= size;
           end += head) {
        builder.layer_part(layer, part)[end - 1] &= std::byte{0x0F};  // the rest is no element
      }
    }
    for (const KvPart part : {KvPart::kKScales, KvPart::kVScales}) {
      const std::size_t size = part_bytes(options.shape, options.codec, part, options.n_tokens);
      for (std::size_t at = 0; at < size; at += sizeof(float)) {
        state = state * 1664525U + 1013904223U;
        const float scale = static_cast<float>(state >> 16) / 65536;
        std::memcpy(builder.layer_part(layer, part) + at, &scale, sizeof(scale));
      }
    }
    const std::size_t means = part_bytes(options.shape, options.codec, KvPart::kKMeans, 1);
    for (std::size_t at = 0; at < means; at += sizeof(std::uint16_t)) {
      state = state * 1664525U + 1013904223U;
      const auto mean = static_cast<std::uint16_t>((state >> 16) & 0xFBFFU);  // a finite f16
      std::memcpy(builder.layer_part(layer, KvPart::kKMeans) + at, &mean, sizeof(mean));
    }
  }
  return std::move(builder).seal();
}

inline std::vector<std::byte> copy_bytes(const Record& record) {
  return {record.bytes().begin(), record.bytes().end()};
}

inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

/// Makes both checksums (and the token hash, while the token count allows it) match whatever the
/// record says, as somebody who forges a record would.
inline void reseal(std::vector<std::byte>& bytes) {
  namespace format = record_format;
  const auto put = [&](std::size_t offset, const Hash128& hash) {
    std::memcpy(bytes.data() + offset, hash.bytes.data(), hash.bytes.size());
  };
  const auto body = std::span<const std::byte>(bytes).subspan(format::kHeaderBytes);
  std::uint32_t n_tokens = 0;
  std::memcpy(&n_tokens, bytes.data() + format::kTokenCountAt, sizeof(n_tokens));
  if (std::uint64_t{n_tokens} * 4 <= body.size()) {
    put(format::kTokenHashAt, xxh3_128(body.first(std::size_t{n_tokens} * 4)));
  }
  put(format::kBodyChecksumAt, xxh3_128(body));
  put(format::kHeaderChecksumAt, xxh3_128(std::span(bytes).first(format::kHeaderChecksumAt)));
}

}  // namespace inferscale::testing
