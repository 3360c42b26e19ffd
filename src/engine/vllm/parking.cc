#include "engine/vllm/parking.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/file.h"
#include "engine/run_plan.h"

namespace inferscale::vllm {
namespace {

// Two conversations with the same words share no record: what they saw may have come from records
// or from text.
Result<Hash128> fresh_context_id() {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, random_bytes(16));
  Hash128 id;
  std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
  return id;
}

}  // namespace

bool is_parking(const RunRequest& request) {
  return !request.session.empty() && request.sampling.max_tokens == 0 && request.allow_injection &&
         request.branches.size() == 1 && request.branches.front().captures.empty() &&
         request.branches.front().score_positions.empty();
}

std::uint32_t ParkingLot::edge(std::size_t tokens) const {
  return static_cast<std::uint32_t>(tokens / block_size_ * block_size_);
}

std::vector<RecordKey> ParkingLot::before(const RunRequest& request) const {
  std::vector<RecordKey> keys;
  const std::lock_guard lock(mutex_);
  const auto found = conversations_.find(request.session);
  if (request.session.empty() || found == conversations_.end() || request.plan.empty() ||
      !request.allow_injection) {
    return keys;
  }
  const Conversation& conversation = found->second;
  // A parking run goes on where the turn ended, whose records it finds again in the same places.
  if (!is_parking(request) && request.plan.front().tokens != conversation.tokens) {
    return keys;
  }
  for (const RequestTrace::Span& span : conversation.spans) {
    keys.push_back(span.key);
  }
  return keys;
}

Result<std::optional<CaptureRange>> ParkingLot::rest(const RunRequest& request,
                                                     const EngineInfo& info) const {
  CaptureRange range;
  const std::size_t tokens = plan_tokens(request) + request.branches.front().tokens.size();
  range.begin = edge(tokens);
  range.end = static_cast<std::uint32_t>(tokens);
  {
    const std::lock_guard lock(mutex_);
    const auto found = conversations_.find(request.session);
    if (found != conversations_.end() && !found->second.spans.empty()) {
      range.begin = std::max(range.begin, found->second.spans.back().end);
    }
  }
  if (range.begin >= range.end || !info.injection) {
    return std::optional<CaptureRange>();
  }
  range.meta.model_fingerprint = info.model.fingerprint;
  range.meta.shape = info.model.shape;
  range.meta.codec = info.cache_dtype;
  range.meta.scope = scope_hash(request.run_for.scope);
  range.meta.context_kind = ContextKind::kParked;
  range.meta.context_tokens = range.begin;
  INFERSCALE_ASSIGN_OR_RETURN(range.meta.context_id, fresh_context_id());
  return std::optional<CaptureRange>(range);
}

void ParkingLot::turn_ran(const std::string& session, const RequestTrace& trace) {
  const std::lock_guard lock(mutex_);
  if (conversations_.size() >= kMaxSessions && !conversations_.contains(session)) {
    return;  // its facts will be text
  }
  Conversation& conversation = conversations_[session];
  conversation.tokens.clear();
  conversation.spans = trace.segments;
}

void ParkingLot::parked(const std::string& session, std::vector<TokenId> tokens,
                        const std::optional<RequestTrace::Span>& record) {
  const std::lock_guard lock(mutex_);
  const auto found = conversations_.find(session);
  if (found == conversations_.end()) {
    return;
  }
  std::vector<RequestTrace::Span>& spans = found->second.spans;
  const std::uint32_t end = edge(tokens.size());
  std::erase_if(spans, [end](const RequestTrace::Span& span) { return span.end <= end; });
  if (record) {
    spans.push_back(*record);
  } else if (spans.empty() || spans.back().end != tokens.size()) {
    spans.clear();  // a gap is left: the next turn's facts are text
  }
  found->second.tokens = std::move(tokens);
}

void ParkingLot::forget(const std::string& session) {
  const std::lock_guard lock(mutex_);
  conversations_.erase(session);
}

}  // namespace inferscale::vllm
