#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/import/export_format.h"

namespace inferscale {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The text as it is stored, on one line: line ends stand only between the parts of a JSON text.
std::string one_line(std::string metadata) {
  std::replace_if(
      metadata.begin(), metadata.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; },
      ' ');
  return metadata.empty() ? "{}" : metadata;
}

/// Agent and run only where they are set; whose the rest is says the header.
void add_scope(Json& object, const Scope& scope) {
  if (!scope.agent.empty()) {
    object["agent"] = scope.agent;
  }
  if (!scope.run.empty()) {
    object["run"] = scope.run;
  }
}

/// {"NAME":{...,"metadata":...}} with the metadata as it is stored: numbers keep their spelling.
std::string wrap(const char* name, const Json& object, const std::string* metadata) {
  std::string inner = dump(object);
  if (metadata != nullptr) {
    inner.pop_back();
    inner += ",\"metadata\":" + one_line(*metadata) + "}";
  }
  return std::string("{\"") + name + "\":" + inner + "}\n";
}

}  // namespace

std::string ExportWriter::counted(std::string lines) {
  hash_.update(as_byte_span(lines));
  lines_ += static_cast<std::uint64_t>(std::count(lines.begin(), lines.end(), '\n'));
  return lines;
}

std::string ExportWriter::header(const Scope& scope, const ExportCounts& counts,
                                 std::string_view created) {
  const Json json = {{"format", export_format::kName},
                     {"version", export_format::kVersion},
                     {"created", created},
                     {"scope",
                      {{"tenant", scope.tenant},
                       {"user", scope.user},
                       {"agent", scope.agent},
                       {"run", scope.run}}},
                     {"turns", counts.turns},
                     {"facts", counts.facts},
                     {"versions", counts.versions}};
  return dump(json) + "\n";
}

std::string ExportWriter::turn(const TurnView& turn) {
  Json json = {{"id", turn.turn.id},
               {"speaker", turn.turn.speaker},
               {"role", turn.turn.role},
               {"text", turn.turn.text},
               {"event_time", turn.turn.event_time}};
  add_scope(json, turn.scope);
  return counted(wrap("turn", json, nullptr));
}

std::string ExportWriter::fact(const ExportedFact& fact) {
  const FactView& live = fact.fact;
  Json json = {{"id", live.id},
               {"version", live.version},
               {"text", live.text},
               {"event_time", live.event_time},
               {"ingest_time", live.ingest_time},
               {"source_turns", live.source_turns},
               {"history", fact.history.size()}};
  add_scope(json, live.scope);
  std::string lines = wrap("fact", json, &live.metadata);
  for (const FactHistoryRow& row : fact.history) {
    const Json version = {{"version", row.version},
                          {"text", row.text},
                          {"event_time", row.event_time},
                          {"valid_from", row.valid_from},
                          {"valid_to", row.valid_to}};
    lines += wrap("version", version, &row.metadata);
  }
  return counted(std::move(lines));
}

std::string ExportWriter::end() {
  const Json json = {{"end", {{"lines", lines_}, {"sha256_128", hash_.finish_128().to_hex()}}}};
  return dump(json) + "\n";
}

}  // namespace inferscale
