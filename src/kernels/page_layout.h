#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "inferscale/kv_record.h"
#include "inferscale/model_spec.h"
#include "inferscale/status.h"

namespace inferscale {

/// How a record lies in pages. Page p holds tokens p * tokens_per_page and on, in all layers. Per
/// layer, in the order of the layers: K [tokens_per_page][heads][head_dim_k], then V
/// [tokens_per_page][heads][head_dim_v], elements of `codec`; then, of a scaled codec, the scales
/// of K and those of V [tokens_per_page][heads]. K, V and the scales each start at a multiple of
/// kPartAlignment bytes from the page's start, the scales of V right behind those of K. What lies
/// between the parts, and the places of tokens that the record does not have, are zero bytes. Keys
/// have no position. A value type; pure arithmetic.
struct PageLayout {
  static constexpr std::size_t kPartAlignment = 64;
  static constexpr std::uint32_t kMaxTokensPerPage = 256;

  KvShape shape;
  KvCodec codec = KvCodec::kF16;
  std::uint32_t tokens_per_page = 4;

  friend bool operator==(const PageLayout&, const PageLayout&) = default;

  /// Errors: kInvalidArgument that names the field and the accepted range. Everything below
  /// REQUIRES that it is ok; then nothing overflows.
  [[nodiscard]] Status validate() const;

  /// The codec of pages for records in `codec`: q8 for those in q4.
  [[nodiscard]] static KvCodec codec_for(KvCodec codec) {
    return codec == KvCodec::kQ4 ? KvCodec::kQ8 : codec;
  }

  /// Of a token, in one layer; `part` is one of kTokenParts.
  [[nodiscard]] std::size_t part_bytes(KvPart part) const {
    return part_token_bytes(shape, codec, part);
  }
  [[nodiscard]] std::size_t k_token_bytes() const { return part_bytes(KvPart::kK); }
  [[nodiscard]] std::size_t v_token_bytes() const { return part_bytes(KvPart::kV); }
  /// From one layer's K to the next layer's.
  [[nodiscard]] std::size_t layer_bytes() const {
    return part_offset(0, KvPart::kKScales) +
           aligned(tokens_per_page * (part_bytes(KvPart::kKScales) + part_bytes(KvPart::kVScales)));
  }
  /// From the page's start to a part of its first token in `layer`; `part` is one of kTokenParts.
  [[nodiscard]] std::size_t part_offset(std::uint32_t layer, KvPart part) const {
    std::size_t offset = layer == 0 ? 0 : layer * layer_bytes();
    if (part != KvPart::kK) {
      offset += aligned(tokens_per_page * k_token_bytes());
    }
    if (part == KvPart::kKScales || part == KvPart::kVScales) {
      offset += aligned(tokens_per_page * v_token_bytes());
    }
    if (part == KvPart::kVScales) {
      offset += tokens_per_page * part_bytes(KvPart::kKScales);
    }
    return offset;
  }
  [[nodiscard]] std::size_t k_offset(std::uint32_t layer) const {
    return part_offset(layer, KvPart::kK);
  }
  [[nodiscard]] std::size_t v_offset(std::uint32_t layer) const {
    return part_offset(layer, KvPart::kV);
  }
  /// A multiple of kPartAlignment.
  [[nodiscard]] std::size_t page_bytes() const { return shape.n_layers * layer_bytes(); }
  [[nodiscard]] std::size_t pages_for(std::uint32_t n_tokens) const {
    return (std::size_t{n_tokens} + tokens_per_page - 1) / tokens_per_page;
  }

 private:
  [[nodiscard]] static std::size_t aligned(std::size_t bytes) {
    return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  }
};

/// Whether a record can lie in such pages. Errors: kInvalidArgument (another shape or codec, a
/// description).
[[nodiscard]] Status check_paged_record(const PageLayout& layout, const Record& record);

/// Writes every byte of the record's page number `index` to `page`. REQUIRES: `page` holds
/// page_bytes(), check_paged_record(layout, record) is ok, index < pages_for(record.n_tokens()).
void record_to_page(const PageLayout& layout, const Record& record, std::size_t index,
                    std::span<std::byte> page);

/// The reverse: the layers' rows of that page's tokens. REQUIRES: as above, of the builder's
/// record.
void page_to_record(const PageLayout& layout, std::span<const std::byte> page, std::size_t index,
                    RecordBuilder& builder);

}  // namespace inferscale
