#include "connector/token_search.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace inferscale {
namespace {

using Places = std::vector<std::size_t>;
using Tokens = std::vector<TokenId>;

TEST(TokenSearch, FindsEveryPlaceInOrder) {
  const Tokens prompt = {1, 2, 1, 2, 1, 3};
  EXPECT_EQ(find_tokens(prompt, Tokens{1, 2, 1}, 9), (Places{0, 2}));
  EXPECT_EQ(find_tokens(prompt, Tokens{3}, 9), (Places{5}));
  EXPECT_EQ(find_tokens(prompt, prompt, 9), (Places{0}));
  EXPECT_EQ(find_tokens(prompt, Tokens{1}, 2), (Places{0, 2}));
  EXPECT_EQ(find_tokens(prompt, Tokens{1}, 0), Places{});
  EXPECT_EQ(find_tokens(prompt, Tokens{2, 3}, 9), Places{});
  EXPECT_EQ(find_tokens(prompt, Tokens{}, 9), Places{});
  EXPECT_EQ(find_tokens(Tokens{}, Tokens{1}, 9), Places{});
}

TEST(TokenSearch, AgreesWithTheLibraryOnSmallAlphabets) {
  std::uint32_t state = 1;
  const auto draw = [&](std::size_t count) {
    Tokens tokens(count);
    for (TokenId& token : tokens) {
      state = state * 1664525U + 1013904223U;
      token = static_cast<TokenId>(state >> 31);
    }
    return tokens;
  };
  for (std::size_t size = 1; size < 8; ++size) {
    for (int i = 0; i < 200; ++i) {
      const Tokens prompt = draw(40);
      const Tokens tokens = draw(size);
      Places expected;
      for (auto at = prompt.begin();; ++at) {
        at = std::search(at, prompt.end(), tokens.begin(), tokens.end());
        if (at == prompt.end()) {
          break;
        }
        expected.push_back(static_cast<std::size_t>(at - prompt.begin()));
      }
      ASSERT_EQ(find_tokens(prompt, tokens, 99), expected);
    }
  }
}

TEST(TokenSearch, RepeatedTokensDoNotTakeLong) {  // quadratic, this would be 2.5e11 comparisons
  Tokens tokens(500'000, 7);
  tokens.back() = 8;
  EXPECT_EQ(find_tokens(Tokens(1'000'000, 7), tokens, 9), Places{});
}

}  // namespace
}  // namespace inferscale
