#include "kernels/page_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

namespace inferscale {
namespace {

/// Tokens of a record that its page number `index` holds, from `first` on.
struct TokenRange {
  std::size_t first = 0;
  std::size_t count = 0;
};

TokenRange tokens_of_page(const PageLayout& layout, std::uint32_t n_tokens, std::size_t index) {
  TokenRange range;
  range.first = index * layout.tokens_per_page;
  assert(range.first < n_tokens);
  range.count = std::min<std::size_t>(layout.tokens_per_page, n_tokens - range.first);
  return range;
}

/// Copies `bytes` of a part to `to` and fills the rest of the part with zeros.
void copy_part(std::byte* to, std::size_t part_bytes, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  std::memset(to + bytes, 0, part_bytes - bytes);
}

}  // namespace

Status PageLayout::validate() const {
  INFERSCALE_RETURN_IF_ERROR(shape.validate().with_context("shape"));
  if (codec == KvCodec::kQ4) {
    return invalid_argument("codec q4 is one of records; pages are in q8 instead");
  }
  if (codec_element_bytes(codec) == 0) {
    return invalid_argument(
        fmt::format("codec {} is not one that pages can have", static_cast<unsigned>(codec)));
  }
  if (tokens_per_page < 1 || tokens_per_page > kMaxTokensPerPage) {
    return invalid_argument(fmt::format("tokens_per_page must be in 1..{}, not {}",
                                        kMaxTokensPerPage, tokens_per_page));
  }
  return Status();
}

Status check_paged_record(const PageLayout& layout, const Record& record) {
  if (!record.has_payload()) {
    return invalid_argument("record: a description; its keys and values are elsewhere");
  }
  if (!(record.meta().shape == layout.shape) || record.meta().codec != layout.codec) {
    return invalid_argument("record: of another shape or codec than the pages");
  }
  return Status();
}

void record_to_page(const PageLayout& layout, const Record& record, std::size_t index,
                    std::span<std::byte> page) {
  const TokenRange tokens = tokens_of_page(layout, record.n_tokens(), index);
  for (std::uint32_t layer = 0; layer < layout.shape.n_layers; ++layer) {
    for (std::size_t i = 0; i < kTokenParts.size(); ++i) {
      const KvPart part = kTokenParts[i];
      const std::size_t token = layout.part_bytes(part);
      const std::size_t at = layout.part_offset(layer, part);
      const std::size_t end = i + 1 < kTokenParts.size()
                                  ? layout.part_offset(layer, kTokenParts[i + 1])
                                  : layout.k_offset(layer + 1);
      copy_part(page.data() + at, end - at, record.layer_part(layer, part) + tokens.first * token,
                tokens.count * token);
    }
  }
}

void page_to_record(const PageLayout& layout, std::span<const std::byte> page, std::size_t index,
                    RecordBuilder& builder) {
  const TokenRange tokens = tokens_of_page(layout, builder.n_tokens(), index);
  for (std::uint32_t layer = 0; layer < layout.shape.n_layers; ++layer) {
    for (const KvPart part : kTokenParts) {
      const std::size_t token = layout.part_bytes(part);
      std::memcpy(builder.layer_part(layer, part) + tokens.first * token,
                  page.data() + layout.part_offset(layer, part), tokens.count * token);
    }
  }
}

}  // namespace inferscale
