#include "kernels/page_layout.h"

#include <gtest/gtest.h>

namespace inferscale::kernels {
namespace {

TEST(PageLayout, PartsAreAlignedAndDoNotOverlap) {
  // 2 layers; K of a token 2 * 4 * 2 = 16 bytes, V 8; 4 tokens: 64 and 32, rounded up to 64 each.
  const PageLayout layout{{2, 2, 4, 2}, KvCodec::kF16, 4};
  EXPECT_EQ(layout.k_token_bytes(), 16U);
  EXPECT_EQ(layout.v_token_bytes(), 8U);
  EXPECT_EQ(layout.k_offset(0), 0U);
  EXPECT_EQ(layout.v_offset(0), 64U);
  EXPECT_EQ(layout.k_offset(1), 128U);
  EXPECT_EQ(layout.v_offset(1), 192U);
  EXPECT_EQ(layout.page_bytes(), 256U);
  // Llama-3.1-8B in f16 needs no padding at all.
  const PageLayout large{{32, 8, 128, 128}, KvCodec::kF16, 4};
  EXPECT_EQ(large.page_bytes(), 32U * 2 * 4 * 8 * 128 * 2);
  for (std::uint32_t tokens_per_page : {1U, 3U, 4U, 16U}) {
    for (const KvShape& shape : {KvShape{3, 3, 6, 10}, {1, 1, 2, 1}, {5, 7, 96, 80}}) {
      const PageLayout odd{shape, KvCodec::kF16, tokens_per_page};
      for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
        EXPECT_EQ(odd.k_offset(layer) % PageLayout::kPartAlignment, 0U);
        EXPECT_EQ(odd.v_offset(layer) % PageLayout::kPartAlignment, 0U);
        EXPECT_GE(odd.v_offset(layer) - odd.k_offset(layer), tokens_per_page * odd.k_token_bytes());
        EXPECT_GE(odd.k_offset(layer + 1) - odd.v_offset(layer),
                  tokens_per_page * odd.v_token_bytes());
      }
      EXPECT_EQ(odd.page_bytes(), odd.k_offset(shape.n_layers));
    }
  }
}

TEST(PageLayout, ScalesAreAPartOfTheirOwn) {
  // SmolLM2-135M: 768 bytes of K and of V, 48 of scales of each: 96, rounded up to 128.
  const PageLayout layout{{30, 3, 64, 64}, KvCodec::kQ8, 4};
  EXPECT_EQ(layout.part_offset(0, KvPart::kV), 768U);
  EXPECT_EQ(layout.part_offset(0, KvPart::kKScales), 1536U);
  EXPECT_EQ(layout.part_offset(0, KvPart::kVScales), 1584U);
  EXPECT_EQ(layout.layer_bytes(), 1664U);
  EXPECT_EQ(layout.part_offset(7, KvPart::kKScales), 7 * 1664U + 1536U);
  EXPECT_EQ(layout.page_bytes(), 30 * 1664U);
  // Llama-3.1-8B needs no padding.
  const PageLayout large{{32, 8, 128, 128}, KvCodec::kQ8, 4};
  EXPECT_EQ(large.page_bytes(), 4 * kv_token_bytes(large.shape, KvCodec::kQ8));
}

TEST(PageLayout, CountsPages) {
  const PageLayout layout{{1, 1, 2, 2}, KvCodec::kF16, 4};
  EXPECT_EQ(layout.pages_for(0), 0U);
  EXPECT_EQ(layout.pages_for(1), 1U);
  EXPECT_EQ(layout.pages_for(4), 1U);
  EXPECT_EQ(layout.pages_for(5), 2U);
  EXPECT_EQ(layout.pages_for(0xFFFFFFFF), 0x40000000U);
}

TEST(PageLayout, RefusesWhatCannotBe) {
  PageLayout layout{{1, 1, 2, 2}, KvCodec::kF16, 4};
  EXPECT_TRUE(layout.validate().ok());
  layout.tokens_per_page = 0;
  EXPECT_EQ(layout.validate().code(), StatusCode::kInvalidArgument);
  layout.tokens_per_page = PageLayout::kMaxTokensPerPage + 1;
  EXPECT_EQ(layout.validate().code(), StatusCode::kInvalidArgument);
  layout = {{1, 1, 2, 2}, static_cast<KvCodec>(99), 4};
  EXPECT_EQ(layout.validate().code(), StatusCode::kInvalidArgument);
  layout = {{1, 1, 2, 2}, KvCodec::kQ4, 4};
  EXPECT_NE(layout.validate().message().find("q4"), std::string::npos);
  layout.codec = PageLayout::codec_for(KvCodec::kQ4);
  EXPECT_TRUE(layout.validate().ok());
  EXPECT_EQ(PageLayout::codec_for(KvCodec::kBf16), KvCodec::kBf16);
  layout = {{0, 1, 2, 2}, KvCodec::kF16, 4};
  EXPECT_EQ(layout.validate().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::kernels
