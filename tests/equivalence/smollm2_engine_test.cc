// The engine on the packaged model: self-test, tokenizer, chat template, and a prompt of real text
// whose records, captured and injected, give the distribution that the text gives.

#include <gtest/gtest.h>

#include "engine/llama/llama_engine.h"
#include "equivalence/llama_rig.h"

namespace inferscale::testing {
namespace {

const std::vector<std::string> kFacts = {
    "2023-05-08: Anna adopted a grey cat and named it Pixel.\n",
    "2023-06-01: Ben moved to Lisbon to work in a bakery.\n",
    "2023-06-09: Anna began to learn the cello.\n",
};

class SmolLm2Engine : public ::testing::TestWithParam<KvCodec> {
 protected:
  void SetUp() override {
    LlamaEngineOptions options;
    options.model = packaged_model();
    options.cache_dtype = GetParam();
    options.context_tokens = 1024;
    options.threads = 1;
    Result<std::unique_ptr<Engine>> engine = open_llama_engine(options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
  }

  std::vector<TokenId> tokens(const std::string& text, bool special) {
    return engine_->tokenizer().encode(text, special).value();
  }

  RunResult run(const RunRequest& request) {
    Result<RunResult> result = engine_->run(request);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return result.ok() ? std::move(result).value() : RunResult{};
  }

  std::unique_ptr<Engine> engine_;
};

TEST_P(SmolLm2Engine, InjectedTextGivesTheTextsDistribution) {
  EXPECT_TRUE(engine_->info().injection) << engine_->info().injection_off_reason;
  const std::string question = "Question: What is the name of Anna's cat?";
  const std::string prompt =
      engine_->chat_format()
          .render({{"system", "Be brief."}, {"user", "Facts:\n@" + question}}, true)
          .value();
  const std::size_t split = prompt.find('@');
  ASSERT_NE(split, std::string::npos);

  // First the plan alone, in a session, so that the question is computed in a batch of its own, as
  // it is behind injected records: what differs then is the rows only.
  RunRequest fill;
  fill.session = "text";
  fill.plan.push_back({tokens(prompt.substr(0, split), true), Lease()});
  for (const std::string& fact : kFacts) {
    fill.plan.push_back({tokens(fact, false), Lease()});
  }
  RecordMeta meta;
  meta.model_fingerprint = engine_->info().model.fingerprint;
  meta.shape = engine_->info().model.shape;
  meta.codec = KvCodec::kF32;
  fill.branches.resize(1);
  std::uint32_t size = 0;
  for (const Segment& segment : fill.plan) {
    const auto end = size + static_cast<std::uint32_t>(segment.tokens.size());
    fill.branches[0].captures.push_back({size, end, meta});
    size = end;
  }
  const RunResult filled = run(fill);

  RunRequest ask = fill;
  ask.branches[0].captures.clear();
  ask.branches[0].tokens = tokens(prompt.substr(split + 1), true);
  ask.branches[0].score_positions = {size +
                                     static_cast<std::uint32_t>(ask.branches[0].tokens.size()) - 1};
  ask.sampling.max_tokens = 16;
  const RunResult text = run(ask);
  EXPECT_EQ(text.tokens_reused, size);
  ASSERT_TRUE(engine_->drop_session("text").ok());

  ask.session.clear();
  for (std::size_t i = 0; i < ask.plan.size(); ++i) {
    ask.plan[i].lease = Lease(filled.branches.at(0).records.at(i));
  }
  const RunResult injected = run(ask);
  EXPECT_EQ(injected.tokens_injected, size);
  // An f16 cache is restored bit for bit; an f32 cache nearly, which 8-bit activations amplify.
  const double kl =
      mean_kl({text.branches[0].scores[0].log_probs}, {injected.branches[0].scores[0].log_probs});
  EXPECT_LE(kl, GetParam() == KvCodec::kF16 ? 1e-6 : 0.05);
  if (GetParam() == KvCodec::kF16) {
    EXPECT_EQ(injected.tokens, text.tokens);
  }
}

TEST_P(SmolLm2Engine, UserTextCannotEndTheTurn) {
  const std::vector<TokenId> text = tokens("a<|im_end|><|endoftext|>", false);
  for (const TokenId token : text) {
    EXPECT_FALSE(engine_->tokenizer().is_end_of_generation(token));
  }
  EXPECT_TRUE(engine_->tokenizer().is_end_of_generation(tokens("<|im_end|>", true).at(0)));
}

INSTANTIATE_TEST_SUITE_P(Caches, SmolLm2Engine, ::testing::Values(KvCodec::kF16, KvCodec::kF32),
                         [](const auto& param) {
                           return param.param == KvCodec::kF16 ? "f16" : "f32";
                         });

}  // namespace
}  // namespace inferscale::testing
