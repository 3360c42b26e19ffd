#include "engine/run_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

namespace inferscale {
namespace {

Status check_tokens(const std::vector<TokenId>& tokens, std::uint32_t vocab_size,
                    const char* where) {
  for (const TokenId token : tokens) {
    if (token < 0 || static_cast<std::uint32_t>(token) >= vocab_size) {
      return invalid_argument(
          fmt::format("{}: token id {} is not in 0..{}", where, token, vocab_size - 1));
    }
  }
  return Status();
}

Status check_capture(const CaptureRange& range, std::size_t length, const EngineInfo& info) {
  if (range.begin >= range.end || range.end > length) {
    return invalid_argument(
        fmt::format("capture range [{}, {}) is not inside the sequence of {} tokens", range.begin,
                    range.end, length));
  }
  if (range.meta.shape != info.model.shape || range.meta.shard_index != 0 ||
      range.meta.shard_count != 1) {
    return invalid_argument("capture.meta.shape is not that of the engine's model");
  }
  if (range.meta.model_fingerprint != info.model.fingerprint) {
    return invalid_argument("capture.meta.model_fingerprint is not that of the engine's model");
  }
  if (!codec_is_known(range.meta.codec)) {
    return invalid_argument("capture.meta.codec is unknown");
  }
  return Status();
}

Status check_branch(const Branch& branch, std::size_t plan, const EngineInfo& info) {
  const std::size_t length = plan + branch.tokens.size();
  INFERSCALE_RETURN_IF_ERROR(check_tokens(branch.tokens, info.model.vocab_size, "branch"));
  for (const CaptureRange& range : branch.captures) {
    INFERSCALE_RETURN_IF_ERROR(check_capture(range, length, info));
  }
  for (const std::uint32_t position : branch.score_positions) {
    if (position >= length) {
      return invalid_argument(fmt::format(
          "score position {} is not inside the sequence of {} tokens", position, length));
    }
  }
  return Status();
}

Status check_shape(const RunRequest& request, const EngineInfo& info) {
  if (request.branches.empty() || request.branches.size() > info.max_branches) {
    return invalid_argument(fmt::format("a run needs 1..{} branches, not {}", info.max_branches,
                                        request.branches.size()));
  }
  if (request.sampling.max_tokens > 0 &&
      (request.branches.size() != 1 || request.branches[0].tokens.empty())) {
    return invalid_argument("generation needs exactly one branch with at least one token");
  }
  if (!request.session.empty() && request.branches.size() != 1) {
    return invalid_argument("a session needs exactly one branch");
  }
  const Sampling& sampling = request.sampling;
  if (!(sampling.temperature >= 0 && sampling.temperature <= 100) ||
      !(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return invalid_argument("sampling: temperature must be in 0..100 and top_p in (0, 1]");
  }
  return Status();
}

/// Why a segment's KV cannot be used, or null when it can. "" means that none was offered.
const char* refusal(const Segment& segment, std::size_t begin, const EngineInfo& info) {
  const Record* record = segment.lease.record();
  if (record == nullptr) {
    return "";
  }
  const RecordMeta& meta = record->meta();
  if (meta.model_fingerprint != info.model.fingerprint || meta.shape != info.model.shape ||
      meta.shard_index != 0 || meta.shard_count != 1) {
    return miss_reason_name(MissReason::kWrongModel);
  }
  if (!codec_is_known(meta.codec)) {
    return "unknown_codec";
  }
  const std::span<const TokenId> ids = record->token_ids();
  if (!std::equal(ids.begin(), ids.end(), segment.tokens.begin(), segment.tokens.end())) {
    return miss_reason_name(MissReason::kWrongTokens);
  }
  if (begin + segment.tokens.size() > info.context_tokens) {
    return "position_out_of_range";
  }
  return info.injection ? nullptr : "injection_off";
}

bool usable(const Segment& segment, std::size_t begin, const EngineInfo& info) {
  return !segment.tokens.empty() && refusal(segment, begin, info) == nullptr;
}

/// Longest common prefix with the session, shortened to what must be computed anew.
std::size_t reusable_tokens(const RunRequest& request, const CachedSequence* cached) {
  if (cached == nullptr) {
    return 0;
  }
  const Branch& branch = request.branches.front();
  const std::vector<TokenId> tokens = sequence_tokens(request, branch);
  const auto ends =
      std::mismatch(tokens.begin(), tokens.end(), cached->tokens.begin(), cached->tokens.end());
  std::size_t reused = static_cast<std::size_t>(ends.first - tokens.begin());
  for (const std::uint32_t position : branch.score_positions) {
    reused = std::min<std::size_t>(reused, position);
  }
  if (request.sampling.max_tokens > 0) {
    reused = std::min(reused, tokens.size() - 1);
  }
  return request.allow_injection ? reused : std::min(reused, cached->first_injected);
}

Status check_scores(const RunRequest& request, const RunPlan& plan) {
  for (const Branch& branch : request.branches) {
    for (const std::uint32_t position : branch.score_positions) {
      if (position >= plan.inject_begin && position < plan.inject_end) {
        return invalid_argument(fmt::format(
            "score position {} stands in a segment that is injected; nothing is computed there",
            position));
      }
    }
  }
  return Status();
}

}  // namespace

void add_fallback(std::vector<Fallback>& fallbacks, const std::string& reason,
                  std::uint32_t count) {
  for (Fallback& fallback : fallbacks) {
    if (fallback.reason == reason) {
      fallback.count += count;
      return;
    }
  }
  fallbacks.push_back({reason, count});
}

std::size_t plan_tokens(const RunRequest& request) {
  std::size_t count = 0;
  for (const Segment& segment : request.plan) {
    count += segment.tokens.size();
  }
  return count;
}

std::vector<TokenId> sequence_tokens(const RunRequest& request, const Branch& branch) {
  std::vector<TokenId> tokens;
  tokens.reserve(plan_tokens(request) + branch.tokens.size());
  for (const Segment& segment : request.plan) {
    tokens.insert(tokens.end(), segment.tokens.begin(), segment.tokens.end());
  }
  tokens.insert(tokens.end(), branch.tokens.begin(), branch.tokens.end());
  return tokens;
}

Status check_request(const RunRequest& request, const EngineInfo& info) {
  INFERSCALE_RETURN_IF_ERROR(check_shape(request, info));
  const std::size_t plan = plan_tokens(request);
  std::size_t total = plan;
  for (const Branch& branch : request.branches) {
    total += branch.tokens.size();
  }
  if (total == 0) {
    return invalid_argument("a run needs at least one token");
  }
  if (total > info.context_tokens) {
    return resource_exhausted(
        fmt::format("the run needs {} tokens (plan {}, branches {}), the context holds {}", total,
                    plan, total - plan, info.context_tokens));
  }
  for (const Segment& segment : request.plan) {
    INFERSCALE_RETURN_IF_ERROR(check_tokens(segment.tokens, info.model.vocab_size, "plan"));
  }
  for (const Branch& branch : request.branches) {
    INFERSCALE_RETURN_IF_ERROR(check_branch(branch, plan, info));
  }
  return Status();
}

Result<RunPlan> make_run_plan(const RunRequest& request, const EngineInfo& info,
                              const CachedSequence* cached) {
  RunPlan plan;
  plan.reused = reusable_tokens(request, cached);
  bool found = false;   // the injected run has begun
  bool closed = false;  // and ended: what follows is text
  std::size_t begin = 0;
  for (std::size_t i = 0; i < request.plan.size(); ++i) {
    const Segment& segment = request.plan[i];
    const std::size_t end = begin + segment.tokens.size();
    const bool skip = !request.allow_injection || segment.tokens.empty() || end <= plan.reused;
    const bool ready = !skip && usable(segment, begin, info);
    if (ready && !closed) {
      if (!found) {
        // A segment that is partly in the session's cache is injected whole: one encoding, not two
        // halves.
        plan.reused = std::min(plan.reused, begin);
        plan.inject_begin = begin;
        plan.first_segment = i;
        found = true;
      }
      plan.inject_end = end;
      plan.last_segment = i + 1;
    } else if (!skip) {
      const char* reason = ready ? "behind_text" : refusal(segment, begin, info);
      closed = found;
      if (reason[0] != '\0') {
        add_fallback(plan.fallbacks, reason);
      }
    }
    begin = end;
  }
  if (!found) {
    plan.inject_begin = plan.inject_end = plan.reused;
  }
  INFERSCALE_RETURN_IF_ERROR(check_scores(request, plan));
  return plan;
}

}  // namespace inferscale
