#include "engine/vllm/vllm_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "engine/vllm/scoring.h"

namespace inferscale::vllm {
namespace {

// The connector learns of a capture with the step that makes it; its answer may be a step behind.
constexpr int kMaxTraceTries = 100;
constexpr std::chrono::milliseconds kTracePause{10};

Result<RecordOwner> owner_of(const RecordMeta& meta, const Scope& scope) {
  for (const RecordOwner owner :
       {RecordOwner::kScope, RecordOwner::kTenant, RecordOwner::kSystem}) {
    if (meta.scope == scope_hash(owner_scope(scope, owner))) {
      return owner;
    }
  }
  return invalid_argument(
      "capture.meta.scope is neither that of the run, nor its tenant's, nor the system's");
}

RecordMeta meta_of(const Segment& segment) { return segment.lease.record()->meta(); }

/// Not guessable, so that nobody reads another's trace by its name.
Result<std::string> fresh_name() {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, random_bytes(16));
  Hash128 name;
  std::copy(bytes.begin(), bytes.end(), name.bytes.begin());
  return "is-" + name.to_hex();
}

/// Collects an answer and hands its tokens on once their text is known.
class Answer {
 public:
  Answer(const ServerParts& server, const RunRequest& request, BranchOutcome& out)
      : server_(server), request_(request), out_(out) {}

  bool take(const CompletionPiece& piece) {
    if (first_ms_ == 0 && !piece.tokens.empty()) {
      first_ms_ = std::max(watch_.elapsed_ms(), 1e-3);
    }
    if (out_.likely.empty()) {
      out_.likely = piece.likely;
    }
    pending_.insert(pending_.end(), piece.tokens.begin(), piece.tokens.end());
    text_ += piece.text;
    // With no string to stop at, "stop" means that the last token ended the answer.
    const bool ended = piece.finish_reason == "stop" && !pending_.empty();
    if (ended) {
      server_.tokenizer.learn_end(pending_.back());
      pending_.pop_back();
    }
    // A token that adds no text is part of a character that is not whole yet.
    return text_.empty() && piece.finish_reason.empty() ? true : hand_on();
  }

  [[nodiscard]] double first_ms() const { return first_ms_; }

 private:
  bool hand_on() {
    if (!text_.empty() && !pending_.empty()) {
      server_.tokenizer.learn(pending_, text_);
    }
    text_.clear();
    for (const TokenId token : pending_) {
      if (out_.generated.size() >= request_.sampling.max_tokens) {
        break;  // the one token of a run without generation
      }
      out_.generated.push_back(token);
      if (request_.on_token && !request_.on_token(token)) {
        return false;
      }
    }
    pending_.clear();
    return true;
  }

  const ServerParts& server_;
  const RunRequest& request_;
  BranchOutcome& out_;
  Stopwatch watch_;
  double first_ms_ = 0;
  std::vector<TokenId> pending_;
  std::string text_;
};

bool is_cancelled(const RunRequest& request) {
  return request.cancelled != nullptr && request.cancelled->load();
}

CompletionRequest to_completion(const ServerParts& server, const RunRequest& request,
                                const RequestParams& params, std::vector<TokenId> prompt,
                                std::size_t generated, bool scored) {
  CompletionRequest out;
  out.url = server.url;
  out.model = server.model;
  out.sampling = request.sampling;
  // The server must have room for one token at least, and makes one at least.
  const std::size_t room = server.info.context_tokens + 1 - prompt.size();
  const std::size_t wanted =
      request.sampling.max_tokens - std::min<std::size_t>(generated, request.sampling.max_tokens);
  out.sampling.max_tokens =
      static_cast<std::uint32_t>(std::max<std::size_t>(1, std::min(wanted, room)));
  out.prompt = std::move(prompt);
  out.likely = scored ? kScoredTokens : 0;
  if (!server.secret.empty()) {
    out.params = signed_params_json(params, server.secret);
    out.cache_salt = cache_salt(server.secret, params, server.info.model.fingerprint);
  }
  return out;
}

/// Whether the connector has said all that it will say of the captures.
bool settled(const RequestTrace& trace, std::size_t captures) {
  std::size_t told = trace.captured.size();
  for (const Fallback& fallback : trace.fallbacks) {
    if (fallback.reason == "stale_epoch" || fallback.reason == "epoch_ahead" ||
        fallback.reason == "injection_off") {
      return trace.finished;  // of all
    }
    told += fallback.reason.starts_with("capture") ? fallback.count : 0;
  }
  return trace.finished && told >= captures;
}

void read_trace(const ServerParts& server, const RequestParams& params, BranchOutcome& out) {
  for (int i = 0; i < kMaxTraceTries; ++i) {
    Result<RequestTrace> trace = server.control.trace(params.request);
    if (!trace.ok()) {
      log_message(LogLevel::kWarning,
                  "nothing counts as injected or captured: " + trace.status().to_string());
      return;
    }
    out.trace = std::move(trace).value();
    out.traced = true;
    if (settled(out.trace, params.capture.size())) {
      return;
    }
    std::this_thread::sleep_for(kTracePause);
  }
}

}  // namespace

Result<RequestParams> make_params(const RunRequest& request, const RunPlan& plan,
                                  const Branch& branch, std::span<const RecordKey> before,
                                  std::span<const std::byte> secret) {
  RequestParams params;
  INFERSCALE_ASSIGN_OR_RETURN(params.request, fresh_name());
  params.scope = request.run_for.scope;
  params.epoch = request.run_for.epoch;
  params.client_salt = request.run_for.client_salt;
  params.purpose = request.allow_injection ? RequestPurpose::kInject : RequestPurpose::kText;
  params.top_j = std::min<std::uint32_t>(request.run_for.top_j, 64);
  if (request.sampling.max_tokens == 0 && request.session.empty() && !branch.captures.empty()) {
    params.purpose = RequestPurpose::kEncode;
    params.context = context_kind_name(branch.captures.front().meta.context_kind);
  }
  params.inject.assign(before.begin(), before.end());
  for (std::size_t i = plan.first_segment; i < plan.last_segment; ++i) {
    const Segment& segment = request.plan[i];
    if (!segment.tokens.empty()) {
      params.inject.push_back(make_record_key(secret, meta_of(segment), segment.tokens));
    }
  }
  const std::vector<TokenId> tokens = sequence_tokens(request, branch);
  for (const CaptureRange& range : branch.captures) {
    CaptureParams capture;
    INFERSCALE_ASSIGN_OR_RETURN(capture.owner, owner_of(range.meta, params.scope));
    capture.key = make_record_key(secret, range.meta,
                                  std::span(tokens).subspan(range.begin, range.end - range.begin));
    capture.begin = range.begin;
    capture.end = range.end;
    capture.context_kind = range.meta.context_kind;
    capture.context_id = range.meta.context_id;
    capture.context_tokens = range.meta.context_tokens;
    params.capture.push_back(capture);
  }
  if (params.inject.size() > kMaxInjectKeys || params.capture.size() > kMaxCaptures) {
    return resource_exhausted("a run injects and captures at most 4096 records each");
  }
  return params;
}

Result<BranchOutcome> run_branch(const ServerParts& server, const RunRequest& request,
                                 const RunPlan& plan, const Branch& branch,
                                 std::span<const RecordKey> before) {
  BranchOutcome out;
  INFERSCALE_ASSIGN_OR_RETURN(RequestParams params,
                              make_params(request, plan, branch, before, server.secret));
  const std::vector<TokenId> prompt = sequence_tokens(request, branch);
  const bool scored = scores_its_end(branch, prompt.size());
  Answer answer(server, request, out);
  const Stopwatch watch;
  CompletionEnd end;
  for (const bool last : {false, true}) {
    std::vector<TokenId> tokens = prompt;
    tokens.insert(tokens.end(), out.generated.begin(), out.generated.end());
    const CompletionRequest completion =
        to_completion(server, request, params, std::move(tokens), out.generated.size(), scored);
    Result<CompletionEnd> ended = complete(
        server.client, completion,
        [&answer](const CompletionPiece& piece) { return answer.take(piece); },
        [&request] { return !is_cancelled(request); });
    if (!ended.ok()) {
      return scored && ended.status().code() == StatusCode::kInvalidArgument
                 ? ended.status().with_context(
                       fmt::format("scoring needs a server that was started with --max-logprobs {}",
                                   kScoredTokens))
                 : ended.status();
    }
    end = *std::move(ended);
    if (!end.server_error) {
      break;
    }
    if (last || params.inject.empty()) {
      return unavailable("the vLLM server could not run the request: " + end.message);
    }
    log_message(LogLevel::kWarning, "sent once more as text: " + end.message);
    out.load_failed = true;
    params.inject.clear();
    params.purpose =
        params.purpose == RequestPurpose::kEncode ? RequestPurpose::kEncode : RequestPurpose::kText;
    INFERSCALE_ASSIGN_OR_RETURN(params.request, fresh_name());
  }
  out.stopped_by_limit = end.finish_reason == "length";
  out.total_ms = watch.elapsed_ms();
  out.first_token_ms = answer.first_ms();
  read_trace(server, params, out);
  return out;
}

}  // namespace inferscale::vllm
