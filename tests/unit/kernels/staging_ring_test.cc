#include "kernels/staging_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <random>
#include <utility>

namespace inferscale {
namespace {

TEST(StagingRing, GivesPartsOneBehindTheOtherAndAround) {
  StagingRing ring(10);
  EXPECT_EQ(ring.take(4), 0U);
  EXPECT_EQ(ring.take(5), 4U);
  EXPECT_EQ(ring.take(2), std::nullopt) << "one byte is left at the end";
  ring.give_back(0);
  EXPECT_EQ(ring.take(3), 0U);
  EXPECT_EQ(ring.take(2), std::nullopt) << "the second part is still in use";
  EXPECT_EQ(ring.take(1), 3U);
  ring.give_back(4);
  EXPECT_EQ(ring.take(6), 4U);
}

TEST(StagingRing, WhatIsGivenBackOutOfOrderIsUsedAgainLater) {
  StagingRing ring(10);
  EXPECT_EQ(ring.take(4), 0U);
  EXPECT_EQ(ring.take(2), 4U);
  EXPECT_EQ(ring.take(4), 6U);
  ring.give_back(4);
  EXPECT_EQ(ring.take(1), std::nullopt);
  ring.give_back(6);
  EXPECT_EQ(ring.take(6), 4U);
  ring.give_back(0);
  ring.give_back(4);
  EXPECT_EQ(ring.take(10), 0U) << "empty again";
}

TEST(StagingRing, TakesNothingAndTooMuch) {
  StagingRing ring(10);
  EXPECT_EQ(ring.take(0), std::nullopt);
  EXPECT_EQ(ring.take(11), std::nullopt);
  EXPECT_EQ(StagingRing().take(1), std::nullopt);
}

// What a capturer relies on: with half of it handed out at most, whatever is taken fits.
TEST(StagingRing, HalfOfItIsAlwaysToBeHadInOrder) {
  constexpr std::size_t kHalf = 100;
  StagingRing ring(2 * kHalf);
  std::mt19937 random(1);
  std::deque<std::pair<std::size_t, std::size_t>> taken;  // offset, size
  std::size_t used = 0;
  for (int step = 0; step < 20000; ++step) {
    const std::size_t size = 1 + random() % kHalf;
    while (used + size > kHalf || (!taken.empty() && random() % 4 == 0)) {
      ring.give_back(taken.front().first);
      used -= taken.front().second;
      taken.pop_front();
    }
    const std::optional<std::size_t> offset = ring.take(size);
    ASSERT_TRUE(offset.has_value()) << size << " bytes beside " << used;
    ASSERT_LE(*offset + size, 2 * kHalf);
    for (const auto& [other, length] : taken) {
      ASSERT_TRUE(*offset + size <= other || other + length <= *offset) << "they overlap";
    }
    taken.emplace_back(*offset, size);
    used += size;
  }
}

}  // namespace
}  // namespace inferscale
