#include "engine/llama/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace inferscale {
namespace {

/// What a sampler draws from these logits, `count` times.
std::vector<TokenId> draws(const Sampling& sampling, const std::vector<float>& logits, int count) {
  LlamaSamplerPtr sampler = make_sampler(sampling).value();
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    std::vector<llama_token_data> data;
    for (std::size_t token = 0; token < logits.size(); ++token) {
      data.push_back({static_cast<TokenId>(token), logits[token], 0});
    }
    llama_token_data_array array{data.data(), data.size(), -1, false};
    llama_sampler_apply(sampler.get(), &array);
    tokens.push_back(array.data[array.selected].id);
  }
  return tokens;
}

const std::vector<float> kLogits = {1.0F, 3.0F, 2.5F, -4.0F, 2.9F};

TEST(Sampler, GreedyTakesTheLargest) {
  EXPECT_EQ(draws({}, kLogits, 3), (std::vector<TokenId>{1, 1, 1}));
}

TEST(Sampler, TheSameSeedGivesTheSameDraws) {
  Sampling sampling;
  sampling.temperature = 1;
  sampling.seed = 42;
  const std::vector<TokenId> first = draws(sampling, kLogits, 50);
  EXPECT_EQ(first, draws(sampling, kLogits, 50));
  sampling.seed = 43;
  EXPECT_NE(first, draws(sampling, kLogits, 50));
}

TEST(Sampler, ASeedOfAllOnesIsNotRandom) {
  Sampling sampling;
  sampling.temperature = 1;
  sampling.seed = 0xffffffffULL;
  EXPECT_EQ(draws(sampling, kLogits, 50), draws(sampling, kLogits, 50));
}

TEST(Sampler, TopKAndTopPCutTheTail) {
  Sampling sampling;
  sampling.temperature = 2;
  sampling.top_k = 2;
  for (const TokenId token : draws(sampling, kLogits, 100)) {
    EXPECT_TRUE(token == 1 || token == 4) << token;
  }
  sampling.top_k = 0;
  sampling.top_p = 0.3F;
  for (const TokenId token : draws(sampling, kLogits, 100)) {
    EXPECT_EQ(token, 1);
  }
}

TEST(LogSoftmax, SumsToOne) {
  const std::vector<float> log_probs = log_softmax(kLogits).value();
  double sum = 0;
  for (const float value : log_probs) {
    sum += std::exp(static_cast<double>(value));
  }
  EXPECT_NEAR(sum, 1, 1e-6);
  EXPECT_NEAR(log_probs[1] - log_probs[0], 2.0, 1e-6);
}

TEST(LogSoftmax, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {3e38F, 3e38F, -3e38F};
  EXPECT_NEAR(log_softmax(logits).value()[0], std::log(0.5), 1e-6);
}

TEST(LogSoftmax, NotANumberIsAnError) {
  const std::vector<float> logits = {1.0F, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(log_softmax(logits).status().code(), StatusCode::kInternal);
  const std::vector<float> infinite = {1.0F, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(log_softmax(infinite).status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace inferscale
