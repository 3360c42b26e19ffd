#include "retrieval/text_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace inferscale {
namespace {

TEST(TextChunks, AShortTextIsOneChunk) {
  EXPECT_TRUE(chunk_spans(0, 254, 32).empty());
  for (const std::size_t n : {1U, 253U, 254U}) {
    const auto spans = chunk_spans(n, 254, 32);
    ASSERT_EQ(spans.size(), 1U);
    EXPECT_EQ(spans[0].begin, 0U);
    EXPECT_EQ(spans[0].size, n);
  }
}

TEST(TextChunks, EveryTokenIsCoveredWithOverlapAndNoChunkExceedsTheWindow) {
  for (std::size_t n = 255; n < 3000; ++n) {
    const auto spans = chunk_spans(n, 254, 32);
    ASSERT_GT(spans.size(), 1U);
    EXPECT_EQ(spans.front().begin, 0U);
    EXPECT_EQ(spans.back().begin + spans.back().size, n);
    std::size_t smallest = n;
    std::size_t largest = 0;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      ASSERT_LE(spans[i].size, 254U) << n;
      smallest = std::min(smallest, spans[i].size);
      largest = std::max(largest, spans[i].size);
      if (i > 0) {
        ASSERT_EQ(spans[i - 1].begin + spans[i - 1].size, spans[i].begin + 32) << n;
      }
    }
    ASSERT_LE(largest - smallest, 1U) << n;
    ASSERT_EQ(spans.size(), (n - 32 + 221) / 222) << n;
  }
}

TEST(TextChunks, SmallWindowsAndNoOverlap) {
  const auto spans = chunk_spans(7, 3, 0);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[1].begin, spans[0].size);
  EXPECT_EQ(chunk_spans(5, 2, 1).size(), 4U);
}

}  // namespace
}  // namespace inferscale
