#include "engine/fake_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/fake_kv.h"

namespace inferscale {
namespace {

std::string hash_text(const std::vector<TokenId>& tokens) {
  HashMessage message;
  message.add_tokens(tokens);
  return xxh3_128(message.bytes()).to_hex().substr(0, 16);
}

/// Half of the probability on one token that depends on all tokens before, the rest spread evenly.
std::vector<float> fake_log_probs(const std::vector<TokenId>& tokens, std::size_t position) {
  const std::string hash =
      hash_text({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(position) + 1});
  const std::size_t favourite =
      std::stoul(hash.substr(0, 8), nullptr, 16) % FakeTokenizer::kVocabSize;
  std::vector<float> log_probs(FakeTokenizer::kVocabSize,
                               std::log(0.5F / (FakeTokenizer::kVocabSize - 1)));
  log_probs[favourite] = std::log(0.5F);
  return log_probs;
}

FakeCall describe(const RunRequest& request) {
  FakeCall call;
  for (const Segment& segment : request.plan) {
    call.segments.push_back(segment.tokens);
    call.offered.push_back(segment.lease.ready());
  }
  for (const Branch& branch : request.branches) {
    call.branches.push_back(branch.tokens);
    call.captures += static_cast<std::uint32_t>(branch.captures.size());
  }
  call.session = request.session;
  call.allow_injection = request.allow_injection;
  call.max_tokens = request.sampling.max_tokens;
  return call;
}

bool is_cancelled(const RunRequest& request) {
  return request.cancelled != nullptr && request.cancelled->load();
}

}  // namespace

/// One run, with the cache as a list of token ids: those that were prefilled or that injected rows
/// stand for.
class FakeEngine::Run {
 public:
  Run(const RunRequest& request, const EngineInfo& info) : request_(request), info_(info) {}

  [[nodiscard]] Status plan(const CachedSequence* cached, bool reject);
  [[nodiscard]] Status fill();
  [[nodiscard]] Status generate();
  [[nodiscard]] RunResult take() { return std::move(result_); }
  [[nodiscard]] CachedSequence cached() const;

 private:
  void check_injected();
  [[nodiscard]] Status capture(const Branch& branch, const std::vector<TokenId>& tokens,
                               BranchResult& out);

  const RunRequest& request_;
  const EngineInfo& info_;
  RunPlan plan_;
  RunResult result_;
  std::size_t first_injected_before_ = SIZE_MAX;
  std::string wrong_;  // what the answer says when injected rows are not those of their tokens
};

Status FakeEngine::Run::plan(const CachedSequence* cached, bool reject) {
  INFERSCALE_ASSIGN_OR_RETURN(plan_, make_run_plan(request_, info_, cached));
  result_.fallbacks = plan_.fallbacks;
  result_.segment_injected.assign(request_.plan.size(), false);
  if (plan_.inject_end > plan_.inject_begin && reject) {
    add_fallback(result_.fallbacks, "state_rejected",
                 static_cast<std::uint32_t>(plan_.last_segment - plan_.first_segment));
    plan_ = RunPlan{};
  }
  if (cached != nullptr && cached->first_injected < plan_.reused) {
    first_injected_before_ = cached->first_injected;
  }
  return Status();
}

void FakeEngine::Run::check_injected() {
  for (std::size_t i = plan_.first_segment; i < plan_.last_segment; ++i) {
    if (request_.plan[i].tokens.empty()) {
      continue;
    }
    result_.segment_injected[i] = true;
    const Record& record = *request_.plan[i].lease.record();
    if (const auto wrong = find_wrong_kv(record); wrong && wrong_.empty()) {
      wrong_ = fmt::format("WRONG KV at {} of segment {}", *wrong, i);
    }
  }
}

Status FakeEngine::Run::fill() {
  check_injected();
  result_.tokens_reused = static_cast<std::uint32_t>(plan_.reused);
  result_.tokens_injected = static_cast<std::uint32_t>(plan_.inject_end - plan_.inject_begin);
  const std::size_t plan_size = plan_tokens(request_);
  std::size_t total = plan_size;
  for (const Branch& branch : request_.branches) {
    const std::vector<TokenId> tokens = sequence_tokens(request_, branch);
    BranchResult out;
    for (const std::uint32_t position : branch.score_positions) {
      out.scores.push_back({position, fake_log_probs(tokens, position)});
    }
    INFERSCALE_RETURN_IF_ERROR(capture(branch, tokens, out));
    result_.branches.push_back(std::move(out));
    total += branch.tokens.size();
  }
  result_.tokens_prefilled =
      static_cast<std::uint32_t>(total - plan_.reused) - result_.tokens_injected;
  return Status();
}

Status FakeEngine::Run::capture(const Branch& branch, const std::vector<TokenId>& tokens,
                                BranchResult& out) {
  for (const CaptureRange& range : branch.captures) {
    if (!info_.injection) {
      add_fallback(result_.fallbacks, "capture_off");
      out.records.push_back(nullptr);
      continue;
    }
    if (!can_fake_kv(range.meta.codec)) {
      return unsupported(std::string("the fake engine gives no records in ") +
                         codec_name(range.meta.codec));
    }
    const auto ids = std::span(tokens).subspan(range.begin, range.end - range.begin);
    INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder, RecordBuilder::create(range.meta, ids));
    fill_fake_kv(ids, builder);
    out.records.push_back(std::move(builder).seal());
  }
  return Status();
}

Status FakeEngine::Run::generate() {
  const Sampling& sampling = request_.sampling;
  if (sampling.max_tokens == 0) {
    return Status();
  }
  std::vector<TokenId> seen = sequence_tokens(request_, request_.branches.front());
  const std::size_t room = info_.context_tokens - seen.size() + 1;
  if (sampling.temperature > 0) {
    seen.push_back(static_cast<TokenId>(sampling.seed & 0xffff));
  }
  const std::string answer = wrong_.empty() ? answer_to(seen) : wrong_;
  for (const char byte : answer) {
    if (is_cancelled(request_)) {
      return unavailable("cancelled");
    }
    result_.tokens.push_back(static_cast<unsigned char>(byte));
    if (request_.on_token != nullptr && !request_.on_token(result_.tokens.back())) {
      return Status();
    }
    if (result_.tokens.size() >= std::min<std::size_t>(sampling.max_tokens, room)) {
      result_.stopped_by_limit = true;
      return Status();
    }
  }
  return Status();
}

CachedSequence FakeEngine::Run::cached() const {
  CachedSequence cached;
  cached.tokens = sequence_tokens(request_, request_.branches.front());
  // The last token is sampled, not decoded, when a limit ends the generation: as in the real
  // engine.
  const std::size_t decoded = result_.tokens.size() - (result_.stopped_by_limit ? 1 : 0);
  cached.tokens.insert(cached.tokens.end(), result_.tokens.begin(),
                       result_.tokens.begin() + static_cast<std::ptrdiff_t>(decoded));
  cached.first_injected = first_injected_before_;
  if (result_.tokens_injected > 0) {
    cached.first_injected = std::min(cached.first_injected, plan_.inject_begin);
  }
  return cached;
}

FakeEngine::FakeEngine(const FakeEngineOptions& options) : options_(options) {
  info_.model.architecture = "fake";
  info_.model.name = "fake";
  info_.model.shape = fake_kv_shape();
  info_.model.rope.rotary_dim = info_.model.shape.head_dim_k;
  info_.model.trained_positions = options.context_tokens;
  info_.model.vocab_size = FakeTokenizer::kVocabSize;
  info_.model.fingerprint.bytes.fill(std::byte{options.model});
  info_.cache_dtype = options.cache_dtype;
  info_.context_tokens = options.context_tokens;
  info_.max_branches = options.max_branches;
  info_.injection = options.injection;
  info_.injection_off_reason = options.injection ? "" : "switched off in the fake engine";
  info_.library = "fake";
}

std::string FakeEngine::answer_to(const std::vector<TokenId>& tokens) {
  return "answer-" + hash_text(tokens);
}

CachedSequence& FakeEngine::open_session(const std::string& name) {
  if (sessions_.count(name) == 0 && sessions_.size() >= options_.max_sessions) {
    const auto oldest = std::min_element(
        sessions_.begin(), sessions_.end(),
        [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
    sessions_.erase(oldest);
  }
  FakeSession& session = sessions_[name];
  session.last_use = ++clock_;
  return session.cached;
}

Status FakeEngine::wait(const RunRequest& request) {
  std::chrono::milliseconds left{0};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    left = delay_;
  }
  for (; left.count() > 0 && !is_cancelled(request); --left) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return is_cancelled(request) ? unavailable("cancelled") : Status();
}

Result<RunResult> FakeEngine::run_locked(const RunRequest& request, FakeCall& call) {
  bool reject = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failures_ > 0) {
      --failures_;
      return failure_;
    }
    reject = rejections_ > 0;
  }
  INFERSCALE_RETURN_IF_ERROR(check_request(request, info_));
  INFERSCALE_RETURN_IF_ERROR(wait(request));
  CachedSequence* session = request.session.empty() ? nullptr : &open_session(request.session);
  Run run(request, info_);
  INFERSCALE_RETURN_IF_ERROR(run.plan(session, reject));
  INFERSCALE_RETURN_IF_ERROR(run.fill());
  INFERSCALE_RETURN_IF_ERROR(run.generate());
  if (session != nullptr) {
    *session = run.cached();
  }
  RunResult result = run.take();
  call.injected = result.segment_injected;
  call.tokens_reused = result.tokens_reused;
  call.tokens_injected = result.tokens_injected;
  call.tokens_prefilled = result.tokens_prefilled;
  return result;
}

Result<RunResult> FakeEngine::run(RunRequest request) {
  const Stopwatch waiting;
  FakeCall call = describe(request);
  const std::lock_guard<TurnMutex> turn(running_);
  const Stopwatch running;
  Result<RunResult> result = run_locked(request, call);
  if (result.ok()) {
    RunTimings& timings = result->timings;
    timings.total_ms = waiting.elapsed_ms();
    const double elapsed_ms = running.elapsed_ms();
    timings.prefill_ms = std::max(elapsed_ms, static_cast<double>(result->tokens_prefilled));
    timings.queue_ms = std::max(0.0, timings.total_ms - elapsed_ms);
    timings.first_token_ms = result->tokens.empty() ? 0 : elapsed_ms;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto& fallbacks = result.ok() ? result->fallbacks : std::vector<Fallback>{};
  const bool rejected =
      std::any_of(fallbacks.begin(), fallbacks.end(),
                  [](const Fallback& fallback) { return fallback.reason == "state_rejected"; });
  rejections_ -= rejected ? 1 : 0;
  call.status = result.status().code();
  calls_.push_back(std::move(call));
  return result;
}

Status FakeEngine::drop_session(const std::string& session) {
  const std::lock_guard<TurnMutex> turn(running_);
  sessions_.erase(session);
  return Status();
}

void FakeEngine::drop_all_sessions() {
  const std::lock_guard<TurnMutex> turn(running_);
  sessions_.clear();
}

void FakeEngine::fail_next_runs(std::uint32_t count, Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failures_ = count;
  failure_ = std::move(status);
}

void FakeEngine::reject_next_injections(std::uint32_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  rejections_ = count;
}

void FakeEngine::set_delay(std::chrono::milliseconds delay) {
  const std::lock_guard<std::mutex> lock(mutex_);
  delay_ = delay;
}

std::vector<FakeCall> FakeEngine::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

void FakeEngine::clear_calls() {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.clear();
}

}  // namespace inferscale
