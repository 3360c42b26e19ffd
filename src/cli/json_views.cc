#include "cli/json_views.h"

#include <nlohmann/json.hpp>

namespace inferscale::cli {
namespace {

using Json = nlohmann::ordered_json;

/// One line; bytes that are not UTF-8 are replaced.
std::string one_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Metadata text as a JSON value; text that is no JSON (it never should be) stays a string.
Json metadata_json(const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

Json view(const Scope& scope) {
  return {
      {"tenant", scope.tenant}, {"user", scope.user}, {"agent", scope.agent}, {"run", scope.run}};
}

Json view(const FactView& fact) {
  return {{"id", fact.id},
          {"version", fact.version},
          {"text", fact.text},
          {"metadata", metadata_json(fact.metadata)},
          {"event_time", fact.event_time},
          {"ingest_time", fact.ingest_time},
          {"source_turns", fact.source_turns},
          {"scope", view(fact.scope)}};
}

Json view(const FactHistoryRow& row) {
  return {{"version", row.version},
          {"event", row.event},
          {"text", row.text},
          {"metadata", metadata_json(row.metadata)},
          {"event_time", row.event_time},
          {"valid_from", row.valid_from},
          {"valid_to", row.valid_to}};
}

Json view(const SearchReply& reply) {
  Json results = Json::array();
  for (const SearchHit& hit : reply.hits) {
    results.push_back({{"id", hit.fact.id},
                       {"text", hit.fact.text},
                       {"score", hit.score},
                       {"scores", {{"vector", hit.vector_score}, {"keyword", hit.keyword_score}}},
                       {"event_time", hit.fact.event_time},
                       {"metadata", metadata_json(hit.fact.metadata)},
                       {"version", hit.fact.version},
                       {"source_turns", hit.fact.source_turns}});
  }
  return {{"results", results},
          {"timings_ms", {{"embed", reply.embed_ms}, {"retrieve", reply.retrieve_ms}}},
          {"note", reply.note}};
}

Json view(const AskReply& reply) {
  Json facts = Json::array();
  for (const UsedFact& fact : reply.facts) {
    facts.push_back({{"id", fact.id},
                     {"state", fact.injected ? "injected" : "text"},
                     {"rank", fact.rank},
                     {"text", fact.text}});
  }
  Json fallbacks = Json::array();
  for (const FallbackCount& fallback : reply.fallbacks) {
    fallbacks.push_back({{"reason", fallback.reason}, {"count", fallback.count}});
  }
  const AskTimings& t = reply.timings;
  return {{"answer", reply.answer},
          {"facts", facts},
          {"tokens",
           {{"prompt", reply.tokens.prompt},
            {"injected", reply.tokens.injected},
            {"prefilled", reply.tokens.prefilled},
            {"reused", reply.tokens.reused},
            {"generated", reply.tokens.generated}}},
          {"fallbacks", fallbacks},
          {"timings_ms",
           {{"embed", t.embed},
            {"retrieve", t.retrieve},
            {"plan", t.plan},
            {"lease", t.lease},
            {"compose", t.compose},
            {"inject", t.inject},
            {"prefill", t.prefill},
            {"ttft", t.ttft},
            {"qtft", t.qtft},
            {"total", t.total}}},
          {"truncated", reply.truncated}};
}

Json view(const CompareReply& reply) {
  return {
      {"same_token_ids", reply.same_token_ids},
      {"greedy_equal", reply.greedy_equal},
      {"kl_first_token", reply.kl_first_token},
      {"kl_noise_floor", reply.kl_noise_floor},
      {"rounds", reply.rounds},
      {"arms",
       {{"none", view(reply.none)}, {"text", view(reply.text)}, {"inject", view(reply.inject)}}}};
}

Json view(const DeleteReceipt& receipt) {
  return {{"facts", receipt.facts},
          {"versions", receipt.versions},
          {"history", receipt.history},
          {"vectors", receipt.vectors},
          {"keywords", receipt.keywords},
          {"turns", receipt.turns},
          {"records",
           {{"gpu", receipt.records_gpu},
            {"host", receipt.records_host},
            {"disk", receipt.records_disk}}},
          {"record_entries", receipt.record_entries},
          {"records_in_use", receipt.records_in_use},
          {"dependants", receipt.dependants},
          {"dependants_reencoded", receipt.dependants_reencoded},
          {"answers_running", receipt.answers_running},
          {"chats_open", receipt.chats_open},
          {"dry_run", receipt.dry_run},
          {"verified", receipt.verified},
          {"note", receipt.note}};
}

Json kv_json(const KvStoreStats& kv) {
  Json tiers = Json::array();
  for (const TierStats& tier : kv.tiers) {
    tiers.push_back({{"name", tier.name},
                     {"records", tier.records},
                     {"bytes", tier.bytes},
                     {"dead_bytes", tier.dead_bytes},
                     {"budget_bytes", tier.budget_bytes},
                     {"hits", tier.hits},
                     {"evictions", tier.evictions},
                     {"corrupt", tier.corrupt},
                     {"torn", tier.torn},
                     {"segments", tier.segments},
                     {"compactions", tier.compactions},
                     {"syncs", tier.syncs},
                     {"degraded", tier.degraded}});
  }
  Json misses = Json::object();
  for (std::size_t i = 1; i < std::size(kv.misses_by_reason); ++i) {
    if (kv.misses_by_reason[i] > 0) {
      misses[miss_reason_name(static_cast<MissReason>(i))] = kv.misses_by_reason[i];
    }
  }
  return {{"tiers", tiers},
          {"puts", kv.puts},
          {"promotions", kv.promotions},
          {"written_later", kv.written_later},
          {"leases_active", kv.leases_active},
          {"misses", misses}};
}

Json view(const EncodeQueueStats& queue) {
  Json failures = Json::array();
  for (const EncodeFailureView& failure : queue.failures) {
    failures.push_back({{"id", failure.id},
                        {"version", failure.version},
                        {"attempts", failure.attempts},
                        {"next_try", failure.next_try},
                        {"error", failure.error}});
  }
  return {{"pending", queue.pending},       {"waiting", queue.waiting},
          {"given_up", queue.given_up},     {"next_try", queue.next_try},
          {"last_error", queue.last_error}, {"failures", failures}};
}

Json view(const StatsReply& stats) {
  return {{"facts", stats.facts},
          {"facts_pending", stats.facts_pending},
          {"turns", stats.turns},
          {"versions", stats.versions},
          {"vectors", stats.vectors},
          {"records", stats.records},
          {"scopes", stats.scopes},
          {"model", stats.model},
          {"model_fingerprint", stats.model_fingerprint},
          {"encode_context", stats.encode_context},
          {"top_j", stats.top_j},
          {"injection", stats.injection},
          {"encode", view(stats.encode)},
          {"kv", kv_json(stats.kv)}};
}

Json view(const std::vector<ItemError>& errors) {
  Json list = Json::array();
  for (const ItemError& error : errors) {
    list.push_back(
        {{"item", error.item}, {"code", error_row(error.code).name}, {"message", error.message}});
  }
  return list;
}

Json view(const VerifyReport& report) {
  Json checks = Json::array();
  for (const VerifyCheck& check : report.checks) {
    checks.push_back(
        {{"name", check.name}, {"ok", check.ok}, {"detail", check.detail}, {"count", check.count}});
  }
  Json problems = Json::array();
  for (const VerifyProblem& problem : report.problems) {
    problems.push_back(
        {{"kind", problem.kind}, {"what", problem.what}, {"repair", problem.repair}});
  }
  const VerifyCounts& counts = report.counts;
  return {{"ok", report.ok},
          {"checks", checks},
          {"problems", problems},
          {"counts",
           {{"facts", counts.facts},
            {"entries", counts.entries},
            {"records", counts.records},
            {"records_read", counts.records_read},
            {"encode_again", counts.encode_again},
            {"cut_off", counts.cut_off},
            {"foreign_files", counts.foreign_files},
            {"problems", counts.problems}}}};
}

}  // namespace

std::string json_text(const VerifyReport& report) { return one_line(view(report)); }

std::string json_text(const std::string& output, const ExportCounts& counts) {
  return one_line({{"output", output},
                   {"turns", counts.turns},
                   {"facts", counts.facts},
                   {"versions", counts.versions}});
}

std::string json_text(const RepairReport& report) {
  Json actions = Json::array();
  for (const RepairAction& action : report.actions) {
    actions.push_back({{"what", action.what}, {"count", action.count}});
  }
  return one_line({{"ok", report.after.ok}, {"actions", actions}, {"after", view(report.after)}});
}

std::string json_text(const FactView& fact) { return one_line(view(fact)); }
std::string json_text(const SearchReply& reply) { return one_line(view(reply)); }
std::string json_text(const AskReply& reply) { return one_line(view(reply)); }
std::string json_text(const DeleteReceipt& receipt) { return one_line(view(receipt)); }
std::string json_text(const StatsReply& stats) { return one_line(view(stats)); }

std::string json_text(const FactView& fact, const DeleteReceipt& erased) {
  Json json = view(fact);
  json["erased"] = view(erased);
  return one_line(json);
}

std::string json_text(const FactList& list) {
  Json facts = Json::array();
  for (const FactView& fact : list.facts) {
    facts.push_back(view(fact));
  }
  return one_line({{"facts", facts}, {"next_cursor", list.next_cursor}});
}

std::string json_text(const std::string& id, const std::vector<FactHistoryRow>& rows) {
  Json history = Json::array();
  for (const FactHistoryRow& row : rows) {
    history.push_back(view(row));
  }
  return one_line({{"id", id}, {"history", history}});
}

std::string json_text(const AddReply& reply) {
  return one_line({{"ids", reply.ids},
                   {"turns", reply.turns},
                   {"facts_added", reply.facts_added},
                   {"facts_existing", reply.facts_existing},
                   {"facts_encoded", reply.facts_encoded},
                   {"errors", view(reply.errors)},
                   {"note", reply.note},
                   {"elapsed_ms", reply.elapsed_ms}});
}

std::string json_text(const EncodeReply& reply, const std::string& context, std::uint64_t pending,
                      bool interrupted) {
  return one_line({{"context", context},
                   {"encoded", reply.encoded},
                   {"failed", reply.failed},
                   {"pending", pending},
                   {"tokens_prefilled", reply.tokens_prefilled},
                   {"interrupted", interrupted},
                   {"elapsed_ms", reply.elapsed_ms}});
}

std::string json_text(const ImportReport& report) {
  return one_line({{"turns", report.turns},
                   {"facts_added", report.facts_added},
                   {"facts_existing", report.facts_existing},
                   {"facts_encoded", report.facts_encoded},
                   {"facts_failed", report.facts_failed},
                   {"skipped", report.skipped},
                   {"versions", report.versions},
                   {"renamed", report.renamed},
                   {"dry_run", report.dry_run},
                   {"format", report.format},
                   {"interrupted", report.interrupted},
                   {"errors", view(report.errors)},
                   {"note", report.note},
                   {"elapsed_ms", report.elapsed_ms}});
}

std::string json_text(const std::string& question, const CompareReply& reply) {
  Json json = view(reply);
  json["question"] = question;
  return one_line(json);
}

std::string json_text(const std::vector<DoctorCheck>& checks, bool all_ok) {
  Json list = Json::array();
  for (const DoctorCheck& check : checks) {
    list.push_back({{"name", check.name}, {"ok", check.ok}, {"detail", check.detail}});
  }
  return one_line({{"ok", all_ok}, {"checks", list}});
}

std::string json_error(const Status& status) {
  return one_line(
      {{"error", {{"code", error_row(status.code()).name}, {"message", status.message()}}}});
}

}  // namespace inferscale::cli
