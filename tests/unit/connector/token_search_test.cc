#include "connector/token_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace inferscale {
namespace {

using Tokens = std::vector<TokenId>;

TokenRun find(const Tokens& prompt, const std::vector<Tokens>& parts) {
  const std::vector<std::span<const TokenId>> spans(parts.begin(), parts.end());
  return find_longest_run(prompt, spans);
}

TEST(TokenSearch, FindsTheFirstPlaceOfTheLongestRun) {
  const Tokens prompt = {1, 2, 1, 2, 1, 3};
  EXPECT_EQ(find(prompt, {{1, 2}, {1, 3}}), (TokenRun{2, 2}));
  EXPECT_EQ(find(prompt, {{1, 2}, {4}}), (TokenRun{0, 1}));
  EXPECT_EQ(find(prompt, {{1}, {3}}), (TokenRun{4, 2}));
  EXPECT_EQ(find(prompt, {prompt}), (TokenRun{0, 1}));
  EXPECT_EQ(find(prompt, {prompt, {1}}), (TokenRun{0, 1}));
  EXPECT_EQ(find(prompt, {{2, 3}}), TokenRun{});
  EXPECT_EQ(find(prompt, {{1}, {}, {2}}), (TokenRun{0, 1}));
  EXPECT_EQ(find(prompt, {}), TokenRun{});
  EXPECT_EQ(find({}, {{1}}), TokenRun{});
}

TEST(TokenSearch,
     ACommonFirstPartIsFoundWhereTheOthersFollow) {  // one token that stands everywhere
  Tokens prompt(10'000, 7);
  prompt[9'000] = 8;
  EXPECT_EQ(find(prompt, {{7}, {8}, {7, 7}}), (TokenRun{8'999, 3}));
}

TEST(TokenSearch, AgreesWithTryingEveryPlace) {
  std::uint32_t state = 1;
  const auto draw = [&](std::size_t count) {
    Tokens tokens(count);
    for (TokenId& token : tokens) {
      state = state * 1664525U + 1013904223U;
      token = static_cast<TokenId>(state >> 31);
    }
    return tokens;
  };
  for (std::size_t size = 1; size < 6; ++size) {
    for (int i = 0; i < 200; ++i) {
      const Tokens prompt = draw(40);
      const std::vector<Tokens> parts = {draw(size), draw(1), draw(3), draw(size)};
      TokenRun expected;
      for (std::size_t begin = 0; begin < prompt.size(); ++begin) {
        std::size_t count = 0;
        std::size_t position = begin;
        while (count < parts.size() && position + parts[count].size() <= prompt.size() &&
               std::equal(parts[count].begin(), parts[count].end(), prompt.begin() + position)) {
          position += parts[count++].size();
        }
        if (count > expected.parts) {
          expected = {begin, count};
        }
      }
      ASSERT_EQ(find(prompt, parts), expected);
    }
  }
}

TEST(TokenSearch, RepeatedTokensDoNotTakeLong) {  // quadratic, this would be 2.5e11 comparisons
  Tokens tokens(500'000, 7);
  tokens.back() = 8;
  EXPECT_EQ(find(Tokens(1'000'000, 7), {tokens}), TokenRun{});
}

}  // namespace
}  // namespace inferscale
