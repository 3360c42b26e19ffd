#include "prompt/plan_order.h"

#include <gtest/gtest.h>

#include <random>

namespace inferscale {
namespace {

using Indices = std::vector<std::size_t>;

TEST(PlanOrder, InjectedFactsComeByRankBestLast) {
  const std::vector<PlanCandidate> candidates = {{10, true}, {10, true}, {10, true}};
  const PlanOrder order = order_plan(candidates, 0, 1000);
  EXPECT_EQ(order.injected, (Indices{2, 1, 0}));
  EXPECT_TRUE(order.as_text.empty());
  EXPECT_EQ(order.dropped, 0U);
}

TEST(PlanOrder, OneMissingRecordMovesOnlyItself) {
  const std::vector<PlanCandidate> candidates = {{10, true}, {10, false}, {10, true}};
  const PlanOrder order = order_plan(candidates, 0, 1000);
  EXPECT_EQ(order.injected, (Indices{2, 0}));
  EXPECT_EQ(order.as_text, (Indices{1}));
}

TEST(PlanOrder, TopJAndMissingFactsAreTextByRankBestLast) {
  const std::vector<PlanCandidate> candidates = {{10, true}, {10, true}, {10, false}, {10, true}};
  const PlanOrder order = order_plan(candidates, 2, 1000);
  EXPECT_EQ(order.injected, (Indices{3}));
  EXPECT_EQ(order.as_text, (Indices{2, 1, 0}));
}

TEST(PlanOrder, TopJBeyondTheListMakesEverythingText) {
  const std::vector<PlanCandidate> candidates = {{10, true}, {10, true}};
  const PlanOrder order = order_plan(candidates, 50, 1000);
  EXPECT_TRUE(order.injected.empty());
  EXPECT_EQ(order.as_text, (Indices{1, 0}));
}

TEST(PlanOrder, BudgetDropsTheLowestRankedAndSaysHowMany) {
  const std::vector<PlanCandidate> candidates = {{40, true}, {40, true}, {40, true}, {5, true}};
  const PlanOrder order = order_plan(candidates, 0, 100);
  // The last would fit, but would displace a better fact that does not.
  EXPECT_EQ(order.injected, (Indices{1, 0}));
  EXPECT_EQ(order.dropped, 2U);
}

TEST(PlanOrder, NothingFitsAnEmptyBudget) {
  const std::vector<PlanCandidate> candidates = {{1, true}};
  EXPECT_EQ(order_plan(candidates, 0, 0).dropped, 1U);
  EXPECT_EQ(order_plan({}, 3, 0).dropped, 0U);
}

TEST(PlanOrder, EveryCandidateIsPlacedOnceOrDropped) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<PlanCandidate> candidates(random() % 20);
    for (PlanCandidate& c : candidates) {
      c = {static_cast<std::uint32_t>(random() % 40), random() % 2 == 0};
    }
    const std::size_t budget = random() % 500;
    const PlanOrder order = order_plan(candidates, random() % 8, budget);
    EXPECT_EQ(order.injected.size() + order.as_text.size() + order.dropped, candidates.size());
    std::size_t used = 0;
    for (const Indices* part : {&order.injected, &order.as_text}) {
      for (std::size_t i = 0; i < part->size(); ++i) {
        used += candidates[(*part)[i]].n_tokens;
        EXPECT_TRUE(i == 0 || (*part)[i - 1] > (*part)[i]);
      }
    }
    EXPECT_LE(used, budget);
    for (const std::size_t i : order.injected) {
      EXPECT_TRUE(candidates[i].has_kv);
    }
  }
}

}  // namespace
}  // namespace inferscale
