// Reads: search, get, list, history, stats.
#include <fmt/format.h>

#include "memory/calibration.h"
#include "memory/service.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kMaxResults = 10'000;
constexpr std::size_t kMaxFailuresShown = 20;

std::string optional_time(const std::optional<TimestampUs>& time, int offset_minutes = 0) {
  return time ? format_rfc3339(*time, offset_minutes) : std::string();
}

Result<Filter> filter_of(const std::string& json) {
  if (json.empty()) {
    return Filter();
  }
  return parse_filter(json);
}

Status check_limit(const char* name, std::uint32_t value) {
  if (value < 1 || value > kMaxResults) {
    return invalid_argument(fmt::format("{}: {} is outside 1 .. {}", name, value, kMaxResults));
  }
  return {};
}

}  // namespace

FactView to_view(const Fact& fact) {
  FactView view;
  view.id = fact.id;
  view.scope = fact.scope;
  view.version = fact.version;
  view.text = fact.text;
  view.metadata = fact.metadata;
  view.event_time = optional_time(fact.event_time, fact.event_offset_minutes);
  view.ingest_time = format_rfc3339(fact.ingest_time);
  view.source_turns = fact.source_turns;
  return view;
}

Result<SearchReply> Service::search(const Scope& scope, const std::string& query, std::uint32_t k,
                                    const std::string& filter) {
  INFERSCALE_RETURN_IF_ERROR(check_limit("k", k));
  RetrievalRequest request{scope, query, k, {}, RetrievalMode::kFused};
  INFERSCALE_ASSIGN_OR_RETURN(request.filter, filter_of(filter));
  INFERSCALE_ASSIGN_OR_RETURN(Retriever* const retriever, core_->retriever());
  INFERSCALE_ASSIGN_OR_RETURN(const RetrievalResult result, retriever->search(request));
  SearchReply reply;
  reply.embed_ms = result.embed_ms;
  reply.retrieve_ms = result.retrieve_ms;
  reply.note = result.note;
  for (const RetrievedFact& hit : result.facts) {
    reply.hits.push_back({to_view(hit.fact), hit.score, hit.vector_score, hit.keyword_score});
  }
  return reply;
}

Result<FactView> Service::get(const Scope& scope, const std::string& id) {
  INFERSCALE_ASSIGN_OR_RETURN(const Fact fact, core_->catalog().get_fact(scope, id));
  return to_view(fact);
}

Result<FactList> Service::list(const Scope& scope, const std::string& filter, std::uint32_t limit,
                               const std::string& cursor) {
  INFERSCALE_RETURN_IF_ERROR(check_limit("limit", limit));
  INFERSCALE_ASSIGN_OR_RETURN(const Filter condition, filter_of(filter));
  INFERSCALE_ASSIGN_OR_RETURN(FactPage page,
                              core_->catalog().list_facts(scope, condition, limit, cursor));
  FactList list;
  list.next_cursor = std::move(page.next_cursor);
  for (const Fact& fact : page.facts) {
    list.facts.push_back(to_view(fact));
  }
  return list;
}

Result<std::vector<FactHistoryRow>> Service::history(const Scope& scope, const std::string& id) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<FactVersion> versions,
                              core_->catalog().history(scope, id));
  std::vector<FactHistoryRow> rows;
  for (const FactVersion& version : versions) {
    rows.push_back({version.version, version.event, version.text, version.metadata,
                    optional_time(version.event_time, version.event_offset_minutes),
                    format_rfc3339(version.valid_from), optional_time(version.valid_to)});
  }
  return rows;
}

Result<EncodeQueueStats> Service::encode_stats(const EngineParts& parts) {
  Catalog& catalog = core_->catalog();
  const std::string context = core_->context().spelling();
  EncodeQueueStats queue;
  queue.background = worker_ != nullptr;
  INFERSCALE_ASSIGN_OR_RETURN(queue.pending, catalog.count_to_encode(parts.fingerprint(), context));
  INFERSCALE_ASSIGN_OR_RETURN(const EncodeFailureCounts counts,
                              catalog.count_encode_failures(parts.fingerprint(), context));
  queue.waiting = counts.waiting;
  queue.given_up = counts.given_up;
  queue.next_try = optional_time(counts.next_try);
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::vector<EncodeFailure> failures,
      catalog.encode_failures(parts.fingerprint(), context, kMaxFailuresShown));
  for (const EncodeFailure& failure : failures) {
    queue.failures.push_back({failure.fact.id, failure.fact.version, failure.attempts,
                              optional_time(failure.next_try), failure.error});
  }
  queue.last_error = failures.empty() ? "" : failures.front().error;
  return queue;
}

Result<StatsReply> Service::stats() {
  INFERSCALE_ASSIGN_OR_RETURN(const CatalogCounts counts, core_->catalog().counts_all());
  StatsReply reply;
  reply.facts = counts.facts;
  reply.turns = counts.turns;
  reply.versions = counts.versions;
  reply.vectors = counts.vectors;
  reply.records = counts.records;
  reply.scopes = counts.scopes;
  reply.encode_context = core_->context().spelling();
  reply.kv = core_->store().stats();
  const auto parts = core_->engine();
  if (!parts.ok()) {
    reply.injection = "off: " + parts.status().to_string();
    reply.facts_pending = counts.facts;
    reply.encode.pending = counts.facts;
    reply.encode.background = worker_ != nullptr;
    return reply;
  }
  const EngineInfo& info = (*parts)->engine->info();
  reply.model = info.model.name;
  reply.model_fingerprint = info.model.fingerprint.to_hex();
  reply.injection = info.injection ? "on" : "off: " + info.injection_off_reason;
  INFERSCALE_ASSIGN_OR_RETURN(reply.encode, encode_stats(**parts));
  reply.facts_pending = reply.encode.pending;
  if (core_->options().top_j) {
    reply.top_j = fmt::format("{} (set)", *core_->options().top_j);
  } else {
    INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> stored,
                                describe_top_j(*core_, **parts));
    reply.top_j = stored.value_or("not calibrated yet");
  }
  return reply;
}

}  // namespace inferscale
