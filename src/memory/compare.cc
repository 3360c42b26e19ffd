// Answerer::compare: one prepared prompt, run without memory, as text and injected.
#include <algorithm>
#include <array>
#include <atomic>
#include <random>

#include "engine/client_salt.h"
#include "memory/answerer.h"
#include "memory/divergence.h"
#include "memory/text_stream.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kMaxRounds = 1000;

struct Arm {
  RunFor run_for;
  std::vector<Segment> plan;
  std::vector<TokenId> tail;
  PreparedPrompt prompt;  // of the `none` arm: without facts
  AskReply reply;
  std::vector<TokenId> generated;
  std::vector<float> first_log_probs;
  std::vector<AskTimings> rounds;

  [[nodiscard]] std::vector<TokenId> all_tokens() const {
    std::vector<TokenId> tokens;
    for (const Segment& segment : plan) {
      tokens.insert(tokens.end(), segment.tokens.begin(), segment.tokens.end());
    }
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    return tokens;
  }
};

RunRequest arm_request(const Arm& arm, std::uint32_t max_tokens,
                       const std::atomic<bool>* cancelled) {
  RunRequest run;
  run.run_for = arm.run_for;
  run.run_for.client_salt = fresh_client_salt("compare");
  run.plan = arm.plan;
  Branch branch;
  branch.tokens = arm.tail;
  run.branches.push_back(std::move(branch));
  run.sampling.max_tokens = max_tokens;
  run.cancelled = cancelled;
  return run;
}

Status answer(Engine& engine, Arm& arm, const AskRequest& request) {
  RunRequest run = arm_request(arm, request.max_tokens, request.cancelled);
  run.branches.front().score_positions = {static_cast<std::uint32_t>(arm.all_tokens().size() - 1)};
  TextStream stream(engine.tokenizer(), {});
  run.on_token = [&stream](TokenId token) { return stream.push(token); };
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, engine.run(std::move(run)));
  arm.reply.answer = stream.finish();
  fill_reply(arm.prompt, result, 1, arm.reply);
  arm.generated = std::move(result.tokens);
  arm.first_log_probs = std::move(result.branches.front().scores.at(0).log_probs);
  return {};
}

Status time_once(Engine& engine, Arm& arm, const AskRequest& request) {
  INFERSCALE_ASSIGN_OR_RETURN(const RunResult result,
                              engine.run(arm_request(arm, 1, request.cancelled)));
  AskReply timed;
  fill_reply(arm.prompt, result, 1, timed);
  arm.rounds.push_back(timed.timings);
  return {};
}

// The text arm's first-token distribution when the engine prefills it in two batches: what rounding
// alone changes.
Result<std::vector<float>> split_log_probs(Engine& engine, const Arm& text,
                                           const AskRequest& request) {
  const std::vector<TokenId> tokens = text.all_tokens();
  const std::size_t half = tokens.size() / 2;
  RunRequest first;
  first.run_for = text.run_for;
  first.run_for.client_salt = fresh_client_salt("compare");
  first.allow_injection = false;
  first.session = "compare-noise-floor";
  Branch head;
  head.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(half));
  first.branches.push_back(head);
  first.cancelled = request.cancelled;
  RunRequest second;
  second.run_for = first.run_for;
  second.allow_injection = false;
  second.session = "compare-noise-floor";
  auto parked = engine.run(std::move(first));
  if (!parked.ok()) {
    return parked.status();
  }
  second.plan.push_back({head.tokens, Lease()});
  Branch rest;
  rest.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(half), tokens.end());
  rest.score_positions = {static_cast<std::uint32_t>(tokens.size() - 1)};
  second.branches.push_back(std::move(rest));
  second.cancelled = request.cancelled;
  auto result = engine.run(std::move(second));
  INFERSCALE_RETURN_IF_ERROR(engine.drop_session("compare-noise-floor"));
  if (!result.ok()) {
    return result.status();
  }
  return std::move(result->branches.front().scores.at(0).log_probs);
}

double median_of(const std::vector<AskTimings>& rounds, double AskTimings::*field) {
  std::vector<double> values;
  for (const AskTimings& t : rounds) {
    values.push_back(t.*field);
  }
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// `total` stays that of the whole answer, which ran once.
void put_medians(Arm& arm) {
  if (arm.rounds.empty()) {
    return;
  }
  for (auto field : {&AskTimings::compose, &AskTimings::inject, &AskTimings::prefill,
                     &AskTimings::ttft, &AskTimings::qtft}) {
    arm.reply.timings.*field = median_of(arm.rounds, field);
  }
}

}  // namespace

Result<CompareReply> Answerer::compare(const AskRequest& request, std::uint32_t rounds) {
  if (rounds < 1 || rounds > kMaxRounds) {
    return invalid_argument("rounds: must be from 1 to 1000");
  }
  INFERSCALE_RETURN_IF_ERROR(check_ask(request));
  INFERSCALE_ASSIGN_OR_RETURN(EngineParts* const parts, core_.engine());
  AskRequest with_kv = request;
  with_kv.inject = true;
  AnswerRegistry::Use use(core_.answers(), false);
  INFERSCALE_ASSIGN_OR_RETURN(PreparedPrompt prompt,
                              prepare_noted(use, [&] { return prepare_ask(*parts, with_kv); }));
  PrefixSegment header = lease_header(core_, *parts);
  if (header.cold) {
    // Every arm reuses the header, so it is made warm first: it is not what is compared.
    INFERSCALE_RETURN_IF_ERROR(warm_header(core_, *parts, request.scope));
    header = lease_header(core_, *parts);
  }
  std::array<Arm, 3> arms;  // none, text, inject
  for (Arm& arm : arms) {
    INFERSCALE_ASSIGN_OR_RETURN(arm.run_for, core_.run_for(request.scope, prompt.top_j));
    arm.plan.push_back(header.segment);
    arm.tail = prompt.tail;
  }
  arms[0].prompt.timings.plan = prompt.timings.plan;
  append_lines(prompt.lines, false, arms[1].plan);
  append_lines(prompt.lines, true, arms[2].plan);
  arms[2].prompt = prompt;
  arms[1].prompt = prompt;
  arms[1].prompt.fallbacks = {};
  arms[1].prompt.timings.lease = 0;

  for (Arm& arm : arms) {
    INFERSCALE_RETURN_IF_ERROR(answer(*parts->engine, arm, request));
  }
  std::minstd_rand shuffle(20260727);  // a fixed order of arms, so that two runs are alike
  std::array<std::size_t, 3> order = {0, 1, 2};
  for (std::uint32_t round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), shuffle);
    for (const std::size_t i : order) {
      INFERSCALE_RETURN_IF_ERROR(time_once(*parts->engine, arms[i], request));
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<float> split,
                              split_log_probs(*parts->engine, arms[1], request));

  CompareReply reply;
  reply.rounds = rounds;
  reply.same_token_ids = arms[1].all_tokens() == arms[2].all_tokens();
  reply.greedy_equal = arms[1].generated == arms[2].generated;
  reply.kl_first_token = kl_divergence(arms[1].first_log_probs, arms[2].first_log_probs);
  reply.kl_noise_floor = kl_divergence(arms[1].first_log_probs, split);
  for (Arm& arm : arms) {
    put_medians(arm);
  }
  reply.none = std::move(arms[0].reply);
  reply.text = std::move(arms[1].reply);
  reply.inject = std::move(arms[2].reply);
  return reply;
}

}  // namespace inferscale
