#include "retrieval/fusion.h"

#include <gtest/gtest.h>

namespace inferscale {
namespace {

std::vector<std::string> ids_of(const std::vector<FusedId>& ranked) {
  std::vector<std::string> ids;
  for (const FusedId& entry : ranked) {
    ids.push_back(entry.fact_id);
  }
  return ids;
}

constexpr FusionWeights kEqual = {.k0 = 60, .vector = 1, .keyword = 1};

TEST(Fusion, ScoresAreTheSumOfReciprocalRanks) {
  const std::vector<RankedId> vector = {{"a", 0.9}, {"b", 0.8}, {"c", 0.7}};
  const std::vector<RankedId> keyword = {{"c", 12.5}, {"a", 3.0}, {"d", 1.0}};
  const auto ranked = fuse_rankings(vector, keyword, kEqual);

  // a: 1/61 + 1/62, c: 1/63 + 1/61, b: 1/62, d: 1/63.
  EXPECT_EQ(ids_of(ranked), (std::vector<std::string>{"a", "c", "b", "d"}));
  EXPECT_DOUBLE_EQ(ranked[0].score, 1.0 / 61 + 1.0 / 62);
  EXPECT_DOUBLE_EQ(ranked[1].score, 1.0 / 63 + 1.0 / 61);
  EXPECT_DOUBLE_EQ(ranked[2].score, 1.0 / 62);
  EXPECT_DOUBLE_EQ(ranked[3].score, 1.0 / 63);
}

TEST(Fusion, KeepsTheScoresOfBothSidesAndKeywordOnlyHits) {
  const auto ranked = fuse_rankings(std::vector<RankedId>{{"a", 0.9}},
                                    std::vector<RankedId>{{"a", 4.0}, {"k", 2.0}}, kEqual);
  ASSERT_EQ(ids_of(ranked), (std::vector<std::string>{"a", "k"}));
  EXPECT_DOUBLE_EQ(ranked[0].vector_score, 0.9);
  EXPECT_DOUBLE_EQ(ranked[0].keyword_score, 4.0);
  EXPECT_DOUBLE_EQ(ranked[1].vector_score, 0);
  EXPECT_DOUBLE_EQ(ranked[1].keyword_score, 2.0);
}

TEST(Fusion, WeightsAndOffsetDecide) {
  const std::vector<RankedId> vector = {{"v", 0.9}};
  const std::vector<RankedId> keyword = {{"k", 9.0}};
  EXPECT_EQ(fuse_rankings(vector, keyword, {.k0 = 60, .vector = 2, .keyword = 1})[0].fact_id, "v");
  EXPECT_EQ(fuse_rankings(vector, keyword, {.k0 = 60, .vector = 1, .keyword = 2})[0].fact_id, "k");
  const auto ranked = fuse_rankings(vector, keyword, {.k0 = 9, .vector = 3, .keyword = 1});
  EXPECT_DOUBLE_EQ(ranked[0].score, 0.3);
  EXPECT_DOUBLE_EQ(ranked[1].score, 0.1);
}

TEST(Fusion, EqualScoresAreOrderedById) {
  const auto ranked =
      fuse_rankings(std::vector<RankedId>{{"z", 0.5}}, std::vector<RankedId>{{"a", 0.5}}, kEqual);
  EXPECT_EQ(ids_of(ranked), (std::vector<std::string>{"a", "z"}));
}

TEST(Fusion, AnIdThatComesTwiceCountsOnceAndMovesNobody) {
  const auto ranked =
      fuse_rankings(std::vector<RankedId>{{"a", 0.9}, {"a", 0.8}, {"b", 0.7}}, {}, kEqual);
  ASSERT_EQ(ids_of(ranked), (std::vector<std::string>{"a", "b"}));
  EXPECT_DOUBLE_EQ(ranked[0].score, 1.0 / 61);
  EXPECT_DOUBLE_EQ(ranked[0].vector_score, 0.9);
  EXPECT_DOUBLE_EQ(ranked[1].score, 1.0 / 62);
}

TEST(Fusion, NothingFromNothing) { EXPECT_TRUE(fuse_rankings({}, {}, {}).empty()); }

}  // namespace
}  // namespace inferscale
