// Distributions over a server that tells the likeliest tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/vllm/scoring.h"
#include "engine/vllm/vllm_engine.h"
#include "support/fake_vllm.h"

namespace inferscale {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using vllm::LikelyToken;

TEST(SpreadLogProbs, KeepsWhatIsToldAndSpreadsTheRest) {
  const LikelyToken told[] = {{3, std::log(0.5F)}, {0, std::log(0.25F)}, {3, std::log(0.5F)}};
  const auto spread = vllm::spread_log_probs(told, 5);
  ASSERT_TRUE(spread.ok()) << spread.status().to_string();
  ASSERT_EQ(spread->size(), 5U);
  EXPECT_EQ((*spread)[3], std::log(0.5F));
  EXPECT_EQ((*spread)[0], std::log(0.25F));
  for (const std::size_t other : {1, 2, 4}) {
    EXPECT_NEAR((*spread)[other], std::log(0.25 / 3), 1e-6) << other;
  }
  double sum = 0;
  for (const float log_prob : *spread) {
    sum += std::exp(static_cast<double>(log_prob));
  }
  EXPECT_NEAR(sum, 1, 1e-6);
}

TEST(SpreadLogProbs, RoundingLeavesNoNegativeProbability) {
  const LikelyToken told[] = {{0, std::log(0.6F)}, {1, std::log(0.4000001F)}};
  const auto spread = vllm::spread_log_probs(told, 4);
  ASSERT_TRUE(spread.ok());
  EXPECT_TRUE(std::isfinite((*spread)[2]));
  EXPECT_LT((*spread)[2], -20);
}

TEST(SpreadLogProbs, RefusesWhatIsNoDistribution) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const LikelyToken& wrong : {LikelyToken{5, -1}, LikelyToken{0, 0.5F}, LikelyToken{0, nan}}) {
    EXPECT_EQ(vllm::spread_log_probs(std::span(&wrong, 1), 5).status().code(),
              StatusCode::kUnavailable);
  }
  EXPECT_EQ(vllm::spread_log_probs({}, 5).status().code(), StatusCode::kUnavailable);
}

class VllmScoring : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> open() {
    VllmOptions options;
    options.address.url = server_.url();
    options.address.control = server_.control_url();
    options.secret = secret_;
    auto engine = open_vllm_engine(options);
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    return engine.ok() ? std::move(engine).value() : nullptr;
  }

  static RunRequest scored(std::vector<std::uint32_t> places) {
    RunRequest request;
    request.plan.push_back({{1, 2, 3, 4, 5}, Lease()});
    request.branches.push_back({{6, 7, 8, 9}, {}, std::move(places)});
    return request;
  }

  const std::vector<std::byte> secret_ = std::vector<std::byte>(32, std::byte{7});
  FakeVllm server_{secret_};
};

TEST_F(VllmScoring, FiguresAreOfTheCodecThatTheServersRecordsHave) {
  EXPECT_EQ(open()->info().library, "vllm 0.0.fake") << "that of its cache";
  server_.set_store_codec("q8");
  EXPECT_EQ(open()->info().library, "vllm 0.0.fake, records in q8");
}

TEST_F(VllmScoring, TellsWhatAnEngineInThisProcessTells) {
  const std::unique_ptr<Engine> engine = open();
  ASSERT_NE(engine, nullptr);
  RunRequest request = scored({5, 8, 6});
  request.branches.push_back({{10, 11}, {}, {6}});
  const auto told = engine->run(request);
  ASSERT_TRUE(told.ok()) << told.status().to_string();
  FakeEngine embedded;
  const auto expected = embedded.run(request);
  ASSERT_TRUE(expected.ok());
  ASSERT_EQ(told->branches.size(), 2U);
  for (std::size_t branch = 0; branch < 2; ++branch) {
    const auto& mine = told->branches[branch].scores;
    const auto& theirs = expected->branches[branch].scores;
    ASSERT_EQ(mine.size(), theirs.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(mine[i].position, theirs[i].position);
      EXPECT_THAT(mine[i].log_probs, Pointwise(FloatNear(1e-5F), theirs[i].log_probs));
    }
  }
  for (const FakeVllmCall& call : server_.calls()) {
    EXPECT_EQ(call.likely, vllm::kScoredTokens);
    EXPECT_EQ(call.max_tokens, 1U);
  }
}

TEST_F(VllmScoring, AsksForNothingThatIsNotScored) {
  const std::unique_ptr<Engine> engine = open();
  ASSERT_NE(engine, nullptr);
  RunRequest request = scored({});
  request.sampling.max_tokens = 3;
  ASSERT_TRUE(engine->run(request).ok());
  ASSERT_EQ(server_.calls().size(), 1U);
  EXPECT_EQ(server_.calls()[0].likely, 0U);
}

TEST_F(VllmScoring, RefusesWhatItCannotScore) {
  const std::unique_ptr<Engine> engine = open();
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->run(scored({2})).status().code(), StatusCode::kUnsupported);
  server_.set_max_likely(20);
  const auto refused = engine->run(scored({8}));
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("--max-logprobs 1024"));
  server_.set_max_likely(4096);
  server_.set_vocab_size(0);
  const std::unique_ptr<Engine> unsure = open();
  ASSERT_NE(unsure, nullptr);
  EXPECT_EQ(unsure->run(scored({8})).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace inferscale
