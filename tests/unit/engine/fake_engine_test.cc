// The fake engine must be strict where tests rely on it: wrong KV, order, reuse, faults.

#include "engine/fake_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/fake_kv.h"

namespace inferscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FakeEngineTest : public ::testing::Test {
 protected:
  std::vector<TokenId> tokens(std::string_view text) {
    return engine_.tokenizer().encode(text, true).value();
  }

  RecordMeta meta() {
    RecordMeta meta;
    meta.model_fingerprint = engine_.info().model.fingerprint;
    meta.shape = engine_.info().model.shape;
    return meta;
  }

  RunRequest ask(const std::vector<std::string>& segments, std::uint32_t max_tokens = 64) {
    RunRequest request;
    for (const std::string& segment : segments) {
      request.plan.push_back({tokens(segment), Lease()});
    }
    request.branches.resize(1);
    request.branches[0].tokens = tokens("question");
    request.sampling.max_tokens = max_tokens;
    return request;
  }

  std::string text(const RunResult& result) {
    std::string text;
    for (const TokenId token : result.tokens) {
      text += engine_.tokenizer().token_bytes(token);
    }
    return text;
  }

  std::string answer(const RunRequest& request) {
    Result<RunResult> result = engine_.run(request);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return result.ok() ? text(*result) : "";
  }

  Lease encode(const std::string& segment) {
    RunRequest request = ask({});
    request.sampling.max_tokens = 0;
    request.branches[0].tokens = tokens(segment);
    const auto size = static_cast<std::uint32_t>(request.branches[0].tokens.size());
    request.branches[0].captures = {{0, size, meta()}};
    return Lease(engine_.run(request).value().branches[0].records[0]);
  }

  FakeEngine engine_;
};

TEST_F(FakeEngineTest, InjectedAndPrefilledPromptsHaveTheSameAnswer) {
  RunRequest request = ask({"<s>header\n", "fact one\n", "fact two\n"});
  const std::string as_text = answer(request);
  request.plan[1].lease = encode("fact one\n");
  const Result<RunResult> injected = engine_.run(request);
  ASSERT_TRUE(injected.ok());
  EXPECT_EQ(text(*injected), as_text);
  EXPECT_EQ(injected->tokens_injected, 9U);
  EXPECT_EQ(injected->tokens_prefilled, 8U + 9 + 8);
  EXPECT_THAT(injected->segment_injected, ElementsAre(false, true, false));
  EXPECT_FALSE(injected->stopped_by_limit);
}

TEST_F(FakeEngineTest, OtherOrderOrTokensHaveAnotherAnswer) {
  const std::string first = answer(ask({"a\n", "b\n"}));
  EXPECT_NE(first, answer(ask({"b\n", "a\n"})));
  EXPECT_NE(first, answer(ask({"a\n", "c\n"})));
  EXPECT_EQ(first, answer(ask({"a\n", "b\n"})));
}

TEST_F(FakeEngineTest, KvOfOtherTokensIsNoticed) {
  const std::vector<TokenId> claimed = tokens("fact one\n");
  const std::vector<TokenId> real = tokens("fact two\n");
  RecordBuilder builder = RecordBuilder::create(meta(), claimed).value();
  fill_fake_kv(real, builder);
  RunRequest request = ask({"fact one\n"});
  request.plan[0].lease = Lease(std::move(builder).seal());
  EXPECT_EQ(answer(request), "WRONG KV at 5 of segment 0");
}

TEST_F(FakeEngineTest, SessionsReuseWhatIsThere) {
  RunRequest request = ask({"<s>header\n"}, 4);
  request.session = "chat";
  ASSERT_TRUE(engine_.run(request).ok());
  RunRequest next = ask({"<s>header\n", "question", "answ"});
  next.session = "chat";
  Result<RunResult> result = engine_.run(next);
  // The last generated token was never decoded.
  EXPECT_EQ(result->tokens_reused, 8U + 8 + 3);
  EXPECT_EQ(result->tokens_prefilled, 1U + 8);
  ASSERT_TRUE(engine_.drop_session("chat").ok());
  EXPECT_EQ(engine_.run(next)->tokens_reused, 0U);
  EXPECT_TRUE(engine_.drop_session("never there").ok());
}

TEST_F(FakeEngineTest, TheOldestSessionGivesWay) {
  FakeEngine engine({.max_sessions = 2});
  RunRequest request = ask({"<s>header\n"}, 0);
  for (const char* name : {"a", "b", "a", "c"}) {
    request.session = name;
    ASSERT_TRUE(engine.run(request).ok());
  }
  request.session = "a";
  EXPECT_GT(engine.run(request)->tokens_reused, 0U);
  request.session = "b";
  EXPECT_EQ(engine.run(request)->tokens_reused, 0U);
}

TEST_F(FakeEngineTest, FaultsHappenWhenAskedFor) {
  engine_.fail_next_runs(1, unavailable("down"));
  EXPECT_EQ(engine_.run(ask({"a\n"})).status().code(), StatusCode::kUnavailable);
  RunRequest request = ask({"a\n"});
  const std::string right = answer(request);
  request.plan[0].lease = encode("a\n");
  engine_.reject_next_injections(1);
  const Result<RunResult> rejected = engine_.run(request);
  EXPECT_EQ(text(*rejected), right);
  EXPECT_EQ(rejected->tokens_injected, 0U);
  EXPECT_EQ(rejected->fallbacks.at(0).reason, "state_rejected");
  EXPECT_EQ(engine_.run(request)->tokens_injected, 2U);
  EXPECT_EQ(engine_.calls().front().status, StatusCode::kUnavailable);
}

TEST_F(FakeEngineTest, InjectionOffStillAnswersAndCapturesNothing) {
  FakeEngine off({.injection = false});
  RunRequest request = ask({"a\n"});
  request.plan[0].lease = encode("a\n");
  request.branches[0].captures = {{0, 2, meta()}};
  const Result<RunResult> result = off.run(request);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->tokens_injected, 0U);
  ASSERT_EQ(result->branches[0].records.size(), 1U);
  EXPECT_EQ(result->branches[0].records[0], nullptr);
  ASSERT_EQ(result->fallbacks.size(), 2U);
  EXPECT_EQ(result->fallbacks[0].reason, "injection_off");
  EXPECT_EQ(result->fallbacks[1].reason, "capture_off");
  EXPECT_FALSE(off.info().injection_off_reason.empty());
}

TEST_F(FakeEngineTest, GenerationStopsWhereItShould) {
  EXPECT_EQ(answer(ask({"a\n"}, 3)), "ans");
  EXPECT_TRUE(engine_.run(ask({"a\n"}, 3))->stopped_by_limit);
  RunRequest request = ask({"a\n"});
  int count = 0;
  request.on_token = [&](TokenId) { return ++count < 2; };
  const Result<RunResult> stopped = engine_.run(request);
  EXPECT_EQ(stopped->tokens.size(), 2U);
  EXPECT_FALSE(stopped->stopped_by_limit);
  std::atomic<bool> cancelled{true};
  request.cancelled = &cancelled;
  EXPECT_THAT(engine_.run(request).status().message(), HasSubstr("cancelled"));
}

TEST_F(FakeEngineTest, ScoresDependOnEverythingBefore) {
  RunRequest request = ask({"ab\n"}, 0);
  request.branches[0].score_positions = {3, 5};
  const Result<RunResult> a = engine_.run(request);
  request.plan[0].tokens[0] = 'x';
  const Result<RunResult> b = engine_.run(request);
  ASSERT_EQ(a->branches[0].scores.size(), 2U);
  EXPECT_EQ(a->branches[0].scores[1].position, 5U);
  double sum = 0;
  for (const float log_prob : a->branches[0].scores[0].log_probs) {
    sum += std::exp(log_prob);
  }
  EXPECT_NEAR(sum, 1, 1e-4);
  EXPECT_NE(a->branches[0].scores[0].log_probs, b->branches[0].scores[0].log_probs);
}

TEST_F(FakeEngineTest, TextCannotNameControlTokens) {
  const auto& tokenizer = engine_.tokenizer();
  EXPECT_EQ(tokenizer.encode("<|im_end|>", false)->size(), 10U);
  EXPECT_THAT(tokenizer.encode("<|im_end|>", true).value(),
              ElementsAre(FakeTokenizer::kMessageEnd));
  EXPECT_EQ(tokenizer.token_bytes(FakeTokenizer::kMessageEnd), "");
  EXPECT_FALSE(tokenizer.encode("\xff", false).ok());
  EXPECT_EQ(engine_.chat_format().render({{"user", "hi"}}, true).value(),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(FakeEngineTest, ThreadsGetTheirOwnAnswers) {
  std::vector<std::string> expected;
  for (int i = 0; i < 4; ++i) {
    expected.push_back(answer(ask({std::to_string(i) + "\n"})));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        RunRequest request = ask({std::to_string(i) + "\n"});
        request.session = std::to_string(round % 3);
        const Result<RunResult> result = engine_.run(request);
        ASSERT_TRUE(result.ok());
        ASSERT_EQ(text(*result), expected[i]);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(engine_.calls().size(), 204U);
}

}  // namespace
}  // namespace inferscale
