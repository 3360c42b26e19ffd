// What `Engine::run` promises, on a real model: the same answer from text, records and sessions;
// branches that do not see each other; limits, cancellation, and an engine that goes on after
// failures.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "equivalence/engine_fixture.h"

namespace inferscale::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using EngineRun = EngineFixture;

TEST_F(EngineRun, TheTextArmIsPlainGreedyDecoding) {
  std::vector<TokenId> tokens;
  for (const std::vector<TokenId>& segment : segments_) {
    tokens.insert(tokens.end(), segment.begin(), segment.end());
  }
  tokens.insert(tokens.end(), question_.begin(), question_.end());
  LlamaRig rig({.model = path_});
  const LogitRows last = rig.decode(tokens, 0, 1);
  std::vector<TokenId> expected = rig.greedy(last, static_cast<std::uint32_t>(tokens.size()), 12);
  const auto end = std::find_if(expected.begin(), expected.end(), [&](TokenId token) {
    return engine_->tokenizer().is_end_of_generation(token);
  });
  expected.erase(end, expected.end());
  const RunResult result = run(ask());
  EXPECT_EQ(result.tokens, expected);
  EXPECT_EQ(result.tokens_prefilled, tokens.size());
  EXPECT_EQ(result.tokens_injected, 0U);
  EXPECT_THAT(result.segment_injected, Each(false));
  EXPECT_GT(result.timings.first_token_ms, 0);
  EXPECT_GE(result.timings.total_ms, result.timings.prefill_ms + result.timings.decode_ms);
}

TEST_F(EngineRun, InjectionGivesTheTextsAnswer) {
  const RunResult text = run(ask());
  RunRequest request = ask_injected();
  const RunResult injected = run(request);
  EXPECT_EQ(injected.tokens, text.tokens);
  EXPECT_EQ(injected.tokens_injected, plan_size());
  EXPECT_EQ(injected.tokens_prefilled, question_.size());
  EXPECT_THAT(injected.segment_injected, Each(true));
  EXPECT_EQ(fallbacks(injected), "");
  EXPECT_GT(injected.timings.compose_ms, 0);
  EXPECT_GT(injected.timings.inject_ms, 0);
  request.allow_injection = false;
  const RunResult off = run(request);
  EXPECT_EQ(off.tokens, text.tokens);
  EXPECT_EQ(off.tokens_injected, 0U);
  EXPECT_EQ(fallbacks(off), "");
}

TEST_F(EngineRun, TextBeforeAndBehindTheInjectedRunIsPrefilled) {
  const RunResult text = run(ask());
  for (const auto& [first, last] : {std::pair{1, 4}, {2, 3}, {0, 2}, {4, 5}}) {
    RunRequest request = ask_injected();
    for (int i = 0; i < 5; ++i) {
      if (i < first || i >= last) {
        request.plan[i].lease = Lease();
      }
    }
    const RunResult result = run(request);
    EXPECT_EQ(result.tokens, text.tokens) << first << ".." << last;
    EXPECT_EQ(result.tokens_injected + result.tokens_prefilled, plan_size() + question_.size());
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(result.segment_injected[i], i >= first && i < last);
    }
  }
}

TEST_F(EngineRun, ScoresAreTheModelsDistribution) {
  RunRequest request = ask_injected(0);
  const std::uint32_t last = plan_size() + static_cast<std::uint32_t>(question_.size()) - 1;
  request.branches[0].score_positions = {last, plan_size()};
  const RunResult injected = run(request);
  RunRequest as_text = request;
  as_text.allow_injection = false;
  as_text.branches[0].score_positions.push_back(3);
  const RunResult text = run(as_text);
  ASSERT_EQ(text.branches[0].scores.size(), 3U);
  EXPECT_EQ(text.branches[0].scores[2].position, 3U);
  for (const ScoredPosition& score : text.branches[0].scores) {
    double sum = 0;
    for (const float log_prob : score.log_probs) {
      sum += std::exp(static_cast<double>(log_prob));
    }
    EXPECT_NEAR(sum, 1, 1e-4);
  }
  for (int i = 0; i < 2; ++i) {
    const std::vector<float>& a = injected.branches[0].scores[i].log_probs;
    const std::vector<float>& b = text.branches[0].scores[i].log_probs;
    EXPECT_LE(max_difference({a}, {b}), 0.1);
  }
  EXPECT_GT(max_difference({text.branches[0].scores[0].log_probs},
                           {text.branches[0].scores[1].log_probs}),
            1);
}

TEST_F(EngineRun, AScoreInsideAnInjectedSegmentIsRefused) {
  RunRequest request = ask_injected(0);
  request.branches[0].score_positions = {5};
  EXPECT_EQ(engine_->run(request).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EngineRun, BranchesAreAsIfEachWereAlone) {
  // Bulk encoding: each fact behind the header, all in one batch; and the same one by one.
  RunRequest bulk;
  bulk.plan.push_back({segments_[0], Lease()});
  const auto begin = static_cast<std::uint32_t>(segments_[0].size());
  std::vector<RunRequest> alone;
  for (std::size_t i = 1; i < segments_.size(); ++i) {
    Branch branch;
    branch.tokens = segments_[i];
    const auto end = begin + static_cast<std::uint32_t>(segments_[i].size());
    branch.captures = {{begin, end, meta()}, {0, begin, meta()}};
    branch.score_positions = {begin - 1, end - 1};
    bulk.branches.push_back(branch);
    RunRequest single;
    single.plan = bulk.plan;
    single.branches = {branch};
    alone.push_back(single);
  }
  const RunResult result = run(bulk);
  EXPECT_EQ(result.tokens_prefilled, plan_size());
  ASSERT_EQ(result.branches.size(), 4U);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const RunResult single = run(alone[i]);
    for (int k = 0; k < 2; ++k) {
      const auto bulk_record = result.branches[i].records[k];
      const auto record = single.branches[0].records[k];
      ASSERT_NE(bulk_record, nullptr);
      EXPECT_TRUE(std::ranges::equal(bulk_record->token_ids(), record->token_ids()));
      std::vector<float> a(record->n_tokens() * meta().shape.k_elements());
      std::vector<float> b(a.size());
      const std::uint32_t layer = meta().shape.n_layers - 1;
      std::memcpy(a.data(), bulk_record->layer_k(layer), a.size() * sizeof(float));
      std::memcpy(b.data(), record->layer_k(layer), b.size() * sizeof(float));
      EXPECT_LE(max_difference({a}, {b}), 0.01);
      EXPECT_LE(max_difference({result.branches[i].scores[k].log_probs},
                               {single.branches[0].scores[k].log_probs}),
                0.1);
    }
  }
}

TEST_F(EngineRun, BranchesBehindAnInjectedPlan) {
  RunRequest request = ask_injected(0);
  request.branches = {{question_, {}, {plan_size() + 2}}, {segments_[1], {}, {plan_size() + 2}}};
  const RunResult injected = run(request);
  request.allow_injection = false;
  const RunResult text = run(request);
  for (int i = 0; i < 2; ++i) {
    EXPECT_LE(max_difference({injected.branches[i].scores[0].log_probs},
                             {text.branches[i].scores[0].log_probs}),
              0.1);
  }
  EXPECT_EQ(injected.tokens_injected, plan_size());
}

TEST_F(EngineRun, ASessionPrefillsOnlyWhatIsNew) {
  RunRequest first = ask(6);
  first.plan.resize(3);
  first.session = "chat";
  const RunResult answer = run(first);
  // The next turn: everything so far, two more segments with KV behind it, and another question.
  std::vector<TokenId> so_far = question_;
  so_far.insert(so_far.end(), answer.tokens.begin(), answer.tokens.end());
  RunRequest second = ask_injected();
  second.plan.insert(second.plan.begin() + 3, Segment{so_far, Lease()});
  for (int i = 0; i < 4; ++i) {
    second.plan[i].lease = Lease();
  }
  RunRequest as_text = second;
  as_text.allow_injection = false;
  second.session = "chat";
  const RunResult result = run(second);
  const std::size_t cached = first.plan[0].tokens.size() + first.plan[1].tokens.size() +
                             first.plan[2].tokens.size() + so_far.size() -
                             (answer.stopped_by_limit ? 1 : 0);
  EXPECT_EQ(result.tokens_reused, cached);
  EXPECT_EQ(result.tokens_injected, segments_[3].size() + segments_[4].size());
  // Those records come from another context, so only the whole sequence as it is can be checked
  // against text.
  EXPECT_EQ(result.tokens_prefilled,
            so_far.size() + plan_size() + question_.size() - cached - result.tokens_injected);
  ASSERT_TRUE(engine_->drop_session("chat").ok());
  RunRequest third = as_text;
  third.session = "chat";
  const RunResult fresh = run(third);
  EXPECT_EQ(fresh.tokens_reused, 0U);
  EXPECT_EQ(fresh.tokens, run(as_text).tokens);
  EXPECT_GT(run(third).tokens_reused, 0U);
}

TEST_F(EngineRun, ReusedTokensGiveTheSameAnswer) {
  RunRequest request = ask();
  const RunResult fresh = run(request);
  request.session = "s";
  for (int round = 0; round < 3; ++round) {
    const RunResult again = run(request);
    EXPECT_EQ(again.tokens, fresh.tokens) << round;
    EXPECT_EQ(again.tokens_reused, round == 0 ? 0 : plan_size() + question_.size() - 1);
  }
  // Another question behind the same facts: the common part stays, what is behind it goes.
  RunRequest other = request;
  other.branches[0].tokens = segments_[2];
  EXPECT_EQ(run(other).tokens_reused, plan_size());
  other.session.clear();
  const RunResult alone = run(other);
  other.session = "s";
  EXPECT_EQ(run(other).tokens, alone.tokens);
}

TEST_F(EngineRun, TheTextArmDoesNotReuseInjectedRows) {
  RunRequest request = ask_injected();
  request.session = "s";
  run(request);
  request.allow_injection = false;
  const RunResult text = run(request);
  EXPECT_EQ(text.tokens_reused, 0U);
  EXPECT_EQ(text.tokens_prefilled, plan_size() + question_.size());
  // Now everything in the session is text.
  EXPECT_EQ(run(request).tokens_reused, plan_size() + question_.size() - 1);
}

TEST_F(EngineRun, SessionsGiveWayToRunsThatNeedTheirCells) {
  // Each session holds about 150 of 512 cells: the oldest must go, and nothing may fail.
  for (int round = 0; round < 2; ++round) {
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      RunRequest request = ask(2);
      request.session = name;
      request.plan[0].tokens[0] = name[0];
      EXPECT_EQ(run(request).tokens_reused, 0U) << name << round;
    }
  }
  RunRequest longest = ask(0);
  longest.branches[0].tokens = random_tokens(kContextTokens - plan_size(), 300, 3);
  EXPECT_EQ(run(longest).tokens_prefilled, kContextTokens);
}

TEST_F(EngineRun, TheNumberOfSessionsIsBounded) {
  for (int i = 0; i < 40; ++i) {
    RunRequest request;
    request.branches.resize(1);
    request.branches[0].tokens = {i, i + 1, i + 2};
    request.session = std::to_string(i);
    EXPECT_EQ(run(request).tokens_reused, 0U);
  }
  EXPECT_TRUE(engine_->drop_session("39").ok());
  EXPECT_TRUE(engine_->drop_session("none").ok());
}

TEST_F(EngineRun, GenerationStopsAtItsLimits) {
  const std::vector<TokenId> all = run(ask(8)).tokens;
  ASSERT_EQ(all.size(), 8U) << "the random model ended early: choose another seed";
  const RunResult three = run(ask(3));
  EXPECT_EQ(three.tokens, std::vector<TokenId>(all.begin(), all.begin() + 3));
  EXPECT_TRUE(three.stopped_by_limit);
  RunRequest stopped = ask(8);
  std::vector<TokenId> seen;
  stopped.on_token = [&](TokenId token) {
    seen.push_back(token);
    return seen.size() < 2;
  };
  const RunResult two = run(stopped);
  EXPECT_EQ(two.tokens, seen);
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_FALSE(two.stopped_by_limit);
}

TEST_F(EngineRun, TheContextsEndEndsAGeneration) {
  RunRequest request = ask(100);
  request.branches[0].tokens = random_tokens(kContextTokens - plan_size() - 3, 300, 4);
  const RunResult result = run(request);
  EXPECT_TRUE(result.stopped_by_limit);
  EXPECT_EQ(result.tokens.size(), 4U);
  request.branches[0].tokens.resize(kContextTokens - plan_size());
  EXPECT_TRUE(engine_->run(request).ok());
  request.branches[0].tokens.push_back(1);
  const Status status = engine_->run(request).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("513"));
}

TEST_F(EngineRun, SamplingRepeatsWithItsSeed) {
  RunRequest request = ask(10);
  request.sampling.temperature = 2;
  request.sampling.top_k = 50;
  request.sampling.seed = 5;
  const std::vector<TokenId> first = run(request).tokens;
  EXPECT_EQ(run(request).tokens, first);
  request.sampling.seed = 6;
  EXPECT_NE(run(request).tokens, first);
}

TEST_F(EngineRun, ACancelledRunLeavesACleanEngine) {
  const RunResult before = run(ask());
  std::atomic<bool> cancelled{false};
  for (const bool in_session : {false, true}) {
    cancelled = false;
    RunRequest request = ask();
    request.cancelled = &cancelled;
    request.session = in_session ? "s" : "";
    request.on_token = [&](TokenId) {
      cancelled = true;
      return true;
    };
    const Status status = engine_->run(request).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("cancelled"));
    EXPECT_EQ(engine_->run(request).status().code(), StatusCode::kUnavailable);
  }
  RunRequest session = ask();
  session.session = "s";
  EXPECT_EQ(run(session).tokens, before.tokens);
  EXPECT_EQ(run(ask()).tokens, before.tokens);
  EXPECT_EQ(run(ask_injected()).tokens, before.tokens);
}

TEST_F(EngineRun, AFailingCallbackIsAnErrorNotAnEnd) {
  const RunResult before = run(ask());
  RunRequest request = ask();
  request.on_token = [](TokenId) -> bool { throw std::runtime_error("callback"); };
  const Status status = engine_->run(request).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("callback"));
  EXPECT_EQ(run(ask()).tokens, before.tokens);
}

TEST_F(EngineRun, ACallbackThatCallsTheEngineIsRefused) {
  RunRequest request = ask(1);
  Status inner;
  request.on_token = [&](TokenId) {
    inner = engine_->run(ask(1)).status();
    return true;
  };
  EXPECT_TRUE(engine_->run(request).ok());
  EXPECT_EQ(inner.code(), StatusCode::kInvalidArgument);
}

TEST_F(EngineRun, AFullQueueSaysSo) {
  LlamaEngineOptions small = options();
  small.max_queue = 1;
  const auto engine = open_llama_engine(small).value();
  std::mutex mutex;
  std::condition_variable wake;
  int started = 0;
  bool release = false;
  RunRequest slow = ask(1);
  slow.on_token = [&](TokenId) {
    std::unique_lock<std::mutex> lock(mutex);
    ++started;
    wake.notify_all();
    wake.wait(lock, [&] { return release; });
    return true;
  };
  std::thread running([&] { EXPECT_TRUE(engine->run(slow).ok()); });
  {
    std::unique_lock<std::mutex> lock(mutex);
    wake.wait(lock, [&] { return started == 1; });
  }
  std::atomic<int> refused{0};
  std::vector<std::thread> waiting;
  for (int i = 0; i < 2; ++i) {
    waiting.emplace_back([&] {
      const Status status = engine->run(ask(1)).status();
      refused += status.code() == StatusCode::kResourceExhausted ? 1 : 0;
      const std::lock_guard<std::mutex> lock(mutex);
      release = release || !status.ok();
      wake.notify_all();
    });
  }
  for (std::thread& thread : waiting) {
    thread.join();
  }
  running.join();
  EXPECT_EQ(refused, 1);
}

TEST_F(EngineRun, ThreadsTakeTurns) {
  const std::vector<TokenId> expected = run(ask(4)).tokens;
  const RunRequest injected = ask_injected(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 4; ++round) {
        RunRequest request = t % 2 == 0 ? injected : ask(4);
        request.session = round % 2 == 0 ? "" : std::to_string(t);
        const Result<RunResult> result = engine_->run(request);
        ASSERT_TRUE(result.ok()) << result.status().to_string();
        EXPECT_EQ(result->tokens, expected);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace inferscale::testing
