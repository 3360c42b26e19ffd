#include "cli/eval/scorer.h"

#include <fmt/format.h>

#include "engine/client_salt.h"
#include "memory/text_stream.h"

namespace inferscale::cli {
namespace {

/// Leaves no arm's KV to the next one.
class SessionScope {
 public:
  SessionScope(Engine& engine, const std::string& session) : engine_(engine), session_(session) {}
  ~SessionScope() { (void)engine_.drop_session(session_); }
  SessionScope(const SessionScope&) = delete;
  SessionScope& operator=(const SessionScope&) = delete;

 private:
  Engine& engine_;
  const std::string& session_;
};

std::uint32_t plan_size(const std::vector<Segment>& plan) {
  std::size_t tokens = 0;
  for (const Segment& segment : plan) {
    tokens += segment.tokens.size();
  }
  return static_cast<std::uint32_t>(tokens);
}

/// What of the plan comes from records.
std::uint32_t leased_tokens(const std::vector<Segment>& plan) {
  std::size_t tokens = 0;
  for (const Segment& segment : plan) {
    tokens += segment.lease.ready() ? segment.tokens.size() : 0;
  }
  return static_cast<std::uint32_t>(tokens);
}

/// Behind the answer everything that has a record is in the cache, or comes from its record again.
Status check_kept(const std::vector<Segment>& plan, const RunResult& result) {
  bool injected = true;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    injected = injected && (!plan[i].lease.ready() || result.segment_injected.at(i));
  }
  return injected || result.tokens_reused >= leased_tokens(plan)
             ? Status()
             : internal_error("an answer was scored behind other KV than it was made with");
}

}  // namespace

RunRequest Scorer::request(const std::vector<Segment>& plan, PromptMode mode) const {
  RunRequest run;
  run.plan = plan;
  // The prompt stays in the cache between an arm's runs; only what follows it is computed again.
  run.session = arm_;
  run.run_for.client_salt = arm_;
  run.allow_injection = mode == PromptMode::kInject;
  run.cancelled = cancelled_;
  return run;
}

Status Scorer::prefill_half(const std::vector<Segment>& plan) {
  const auto middle = static_cast<std::ptrdiff_t>(plan.size() / 2);
  const std::vector<Segment> half(plan.begin(), plan.begin() + middle);
  RunRequest run = request(half, PromptMode::kSplit);
  run.branches.push_back({{plan[plan.size() / 2].tokens.front()}, {}, {}});
  return engine_.run(std::move(run)).status();
}

Status Scorer::generate(const std::vector<Segment>& plan, const std::vector<TokenId>& tail,
                        PromptMode mode, ArmScores& scores) {
  RunRequest run = request(plan, mode);
  run.branches.push_back({tail, {}, {}});
  run.sampling.max_tokens = answer_tokens_;
  TextStream stream(engine_.tokenizer(), {});
  run.on_token = [&stream](TokenId token) { return stream.push(token); };
  INFERSCALE_ASSIGN_OR_RETURN(const RunResult result, engine_.run(std::move(run)));
  const std::uint32_t expected = mode == PromptMode::kInject ? leased_tokens(plan) : 0;
  if (result.tokens_injected != expected) {
    return internal_error(fmt::format("{} tokens were injected where {} have records",
                                      result.tokens_injected, expected));
  }
  scores.answer = result.tokens;
  scores.answer_text = stream.finish();
  scores.prompt_tokens = plan_size(plan) + static_cast<std::uint32_t>(tail.size());
  scores.injected = result.tokens_injected;
  scores.prefilled = result.tokens_prefilled;
  scores.ttft_ms = result.timings.queue_ms + result.timings.first_token_ms;
  return {};
}

Result<LogProbs> Scorer::score(const std::vector<Segment>& plan, const std::vector<TokenId>& tail,
                               const std::vector<TokenId>& path, PromptMode mode) {
  RunRequest run = request(plan, mode);
  Branch branch;
  branch.tokens = tail;
  branch.tokens.insert(branch.tokens.end(), path.begin(), path.end() - 1);
  const std::uint32_t first = plan_size(plan) + static_cast<std::uint32_t>(tail.size()) - 1;
  for (std::uint32_t i = 0; i < path.size(); ++i) {
    branch.score_positions.push_back(first + i);
  }
  run.branches.push_back(std::move(branch));
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, engine_.run(std::move(run)));
  if (mode == PromptMode::kInject) {
    INFERSCALE_RETURN_IF_ERROR(check_kept(plan, result));
  }
  LogProbs log_probs;
  for (ScoredPosition& scored : result.branches.front().scores) {
    log_probs.push_back(std::move(scored.log_probs));
  }
  return log_probs;
}

Status Scorer::score_paths(const std::vector<Segment>& plan, const std::vector<TokenId>& tail,
                           const AnswerPaths& paths, PromptMode mode, ArmScores& scores) {
  INFERSCALE_ASSIGN_OR_RETURN(scores.gold, score(plan, tail, paths.gold, mode));
  scores.gold_nll = mean_nll(scores.gold, paths.gold);
  if (!paths.reference.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(scores.reference, score(plan, tail, paths.reference, mode));
  }
  for (const std::vector<TokenId>& path : paths.distractors) {
    INFERSCALE_ASSIGN_OR_RETURN(const LogProbs log_probs, score(plan, tail, path, mode));
    scores.distractor_nll.push_back(mean_nll(log_probs, path));
  }
  return {};
}

Result<ArmScores> Scorer::run(const std::vector<Segment>& plan, const std::vector<TokenId>& tail,
                              const AnswerPaths& paths, PromptMode mode) {
  arm_ = fresh_client_salt("eval");
  const SessionScope session(engine_, arm_);
  ArmScores scores;
  if (mode == PromptMode::kSplit) {
    INFERSCALE_RETURN_IF_ERROR(prefill_half(plan));
  }
  INFERSCALE_RETURN_IF_ERROR(generate(plan, tail, mode, scores));
  INFERSCALE_RETURN_IF_ERROR(score_paths(plan, tail, paths, mode, scores));
  return scores;
}

Result<ArmScores> Scorer::run_reference(const std::vector<Segment>& plan,
                                        const std::vector<TokenId>& tail, AnswerPaths paths) {
  arm_ = fresh_client_salt("eval");
  const SessionScope session(engine_, arm_);
  ArmScores scores;
  INFERSCALE_RETURN_IF_ERROR(generate(plan, tail, PromptMode::kText, scores));
  paths.reference = scores.answer;
  INFERSCALE_RETURN_IF_ERROR(score_paths(plan, tail, paths, PromptMode::kText, scores));
  return scores;
}

Result<std::vector<std::shared_ptr<const Record>>> Scorer::capture_joint(
    const std::vector<Segment>& plan, const std::vector<TokenId>& tail,
    const std::vector<RecordMeta>& metas) {
  RunRequest run;
  run.plan = plan;
  run.allow_injection = false;
  run.cancelled = cancelled_;
  Branch branch;
  branch.tokens = tail;
  std::uint32_t begin = plan_size(plan);
  for (std::size_t i = plan.size(); i-- > plan.size() - metas.size();) {
    begin -= static_cast<std::uint32_t>(plan[i].tokens.size());
  }
  for (std::size_t i = 0; i < metas.size(); ++i) {
    const Segment& segment = plan[plan.size() - metas.size() + i];
    const std::uint32_t end = begin + static_cast<std::uint32_t>(segment.tokens.size());
    branch.captures.push_back({begin, end, metas[i]});
    begin = end;
  }
  run.branches.push_back(std::move(branch));
  INFERSCALE_ASSIGN_OR_RETURN(RunResult result, engine_.run(std::move(run)));
  std::vector<std::shared_ptr<const Record>> records = std::move(result.branches.front().records);
  for (const auto& record : records) {
    if (record == nullptr) {
      return unavailable("the engine could not read the KV back from its cache");
    }
  }
  return records;
}

}  // namespace inferscale::cli
