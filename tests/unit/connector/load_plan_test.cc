#include "connector/load_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "unit/kv/sample_records.h"

namespace inferscale::testing {
namespace {

/// Three records of 4, 2 and 3 tokens that stand from token 2 on; the last has no context.
Match sample() {
  Match match;
  match.begin = 2;
  match.end = 11;
  match.segments = {{key_of(1), 2, 6, hash_of(0x33), hash_of(0x22)},
                    {key_of(2), 6, 8, hash_of(0x34), hash_of(0x22)},
                    {key_of(3), 8, 11, hash_of(0x33), {}}};
  return match;
}

TEST(LoadPlan, IsOfTheRecordsThatAreTouched) {
  const LoadPlan plan = plan_load(sample(), 4, 7);
  EXPECT_EQ(plan.first, 2U);
  EXPECT_EQ(plan.last, 8U);
  const std::vector<TokenId> tokens = {12, 13, 14, 15, 16, 17};
  const auto items = load_items(plan.bytes, tokens);
  ASSERT_TRUE(items.ok()) << items.status().to_string();
  ASSERT_EQ(items->size(), 2U);
  const LoadItem &a = items->at(0), &b = items->at(1);
  EXPECT_EQ(a.key, key_of(1));
  EXPECT_EQ(a.scope, hash_of(0x33));
  EXPECT_EQ(a.context_id, hash_of(0x22));
  EXPECT_EQ(a.tokens, (std::vector<TokenId>{12, 13, 14, 15}));
  EXPECT_EQ(a.first_position, 2U);
  EXPECT_EQ(a.first_token, 2U);
  EXPECT_EQ(a.n_tokens, 2U);
  EXPECT_EQ(b.scope, hash_of(0x34));
  EXPECT_EQ(b.tokens, (std::vector<TokenId>{16, 17}));
  EXPECT_EQ(b.first_position, 6U);
  EXPECT_EQ(b.first_token, 0U);
  EXPECT_EQ(b.n_tokens, 1U);
}

TEST(LoadPlan, TellsRecordsWithoutAContext) {
  const LoadPlan plan = plan_load(sample(), 8, 11);
  const std::vector<TokenId> tokens = {1, 2, 3};
  EXPECT_EQ(load_items(plan.bytes, tokens)->at(0).context_id, std::nullopt);
  EXPECT_TRUE(plan_load(sample(), 11, 20).bytes.empty());
  EXPECT_TRUE(plan_load(Match(), 0, 20).bytes.empty());
  EXPECT_TRUE(load_items({}, {})->empty());
}

TEST(LoadPlan, BytesOfNoPlanAreRefused) {
  const LoadPlan plan = plan_load(sample(), 2, 11);
  const std::vector<TokenId> tokens(10);
  const std::span<const TokenId> all(tokens);
  EXPECT_TRUE(load_items(plan.bytes, all.first(9)).ok());
  for (const std::size_t count : {0U, 8U, 10U}) {
    EXPECT_EQ(load_items(plan.bytes, all.first(count)).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(
      load_items(std::span(plan.bytes).first(plan.bytes.size() - 1), all.first(9)).status().code(),
      StatusCode::kInvalidArgument);
}

TEST(LoadPlan, EndsWhereTheRoomDoes) {
  const Match match = sample();
  const auto limit = [&](std::uint32_t local_hit, std::uint64_t tokens) {
    const LoadLimit found = limit_load(match, local_hit, tokens);
    return std::pair(found.end, found.left_out);
  };
  EXPECT_EQ(limit(0, 9), std::pair(11U, std::size_t{0}));
  EXPECT_EQ(limit(0, 8), std::pair(8U, std::size_t{1}));
  EXPECT_EQ(limit(0, 3), std::pair(2U, std::size_t{3}));
  EXPECT_EQ(limit(6, 5), std::pair(11U, std::size_t{0})) << "the first is there already";
  EXPECT_EQ(limit(5, 6), std::pair(8U, std::size_t{1})) << "whole records are loaded";
}

}  // namespace
}  // namespace inferscale::testing
