#include "cli/import/export_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "cli/import/export_format.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

using Json = nlohmann::ordered_json;

Result<std::uint64_t> number_member(const Json& object, const char* key, std::uint64_t highest) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() ||
      found->get<std::uint64_t>() > highest) {
    return invalid_argument(fmt::format("{}: expected a number from 0 to {}", key, highest));
  }
  return found->get<std::uint64_t>();
}

/// The metadata of an object as it is written there.
Result<std::string> metadata_text(std::string_view content) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<JsonMember> members, json_members(content));
  std::string text = "{}";
  for (const JsonMember& member : members) {
    if (member.key == "metadata") {
      text = member.value;  // the last one, as a parser would take it
    }
  }
  if (find_invalid_utf8(text) != std::string_view::npos) {
    return invalid_argument("metadata: not UTF-8");
  }
  return text.front() == '{' ? Result<std::string>(text)
                             : Result<std::string>(invalid_argument("metadata: not an object"));
}

Result<Json> object_of(std::string_view content) {
  INFERSCALE_ASSIGN_OR_RETURN(Json json, parse_json_item(content));
  return json.is_object() ? Result<Json>(std::move(json))
                          : Result<Json>(invalid_argument("expected an object"));
}

Result<std::vector<std::string>> sources_of(const Json& json) {
  std::vector<std::string> sources;
  const auto found = json.find("source_turns");
  if (found == json.end()) {
    return sources;
  }
  const bool texts =
      found->is_array() &&
      std::all_of(found->begin(), found->end(), [](const Json& id) { return id.is_string(); });
  if (!texts) {
    return invalid_argument("source_turns: expected a list of turn ids");
  }
  return found->get<std::vector<std::string>>();
}

Result<ExportCounts> read_counts(const Json& json) {
  ExportCounts counts;
  INFERSCALE_ASSIGN_OR_RETURN(counts.turns, number_member(json, "turns", UINT64_MAX));
  INFERSCALE_ASSIGN_OR_RETURN(counts.facts, number_member(json, "facts", UINT64_MAX));
  INFERSCALE_ASSIGN_OR_RETURN(counts.versions, number_member(json, "versions", UINT64_MAX));
  return counts;
}

}  // namespace

Result<ExportLine> split_export_line(std::string_view text) {
  if (text.size() > export_format::kMaxLineBytes) {
    return invalid_argument(fmt::format("longer than {} bytes", export_format::kMaxLineBytes));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<JsonMember> members, json_members(text));
  if (members.size() != 1) {
    return invalid_argument("expected one of turn, fact, version and end");
  }
  return ExportLine{std::string(members[0].key), members[0].value};
}

Result<TurnView> read_exported_turn(std::string_view content, const Scope& owner) {
  INFERSCALE_ASSIGN_OR_RETURN(const Json json, object_of(content));
  TurnView view;
  view.scope = owner;
  const std::pair<const char*, std::string*> fields[] = {{"id", &view.turn.id},
                                                         {"speaker", &view.turn.speaker},
                                                         {"role", &view.turn.role},
                                                         {"text", &view.turn.text},
                                                         {"agent", &view.scope.agent},
                                                         {"run", &view.scope.run},
                                                         {"event_time", &view.turn.event_time}};
  for (const auto& [key, target] : fields) {
    INFERSCALE_ASSIGN_OR_RETURN(*target, string_member(json, key));
  }
  if (view.turn.id.empty()) {
    return invalid_argument("id: missing");
  }
  return view;
}

Result<ExportedFactLine> read_exported_fact(std::string_view content, const Scope& owner) {
  INFERSCALE_ASSIGN_OR_RETURN(const Json json, object_of(content));
  ExportedFactLine line;
  FactView& view = line.fact.fact;
  view.scope = owner;
  const std::pair<const char*, std::string*> fields[] = {{"id", &view.id},
                                                         {"text", &view.text},
                                                         {"event_time", &view.event_time},
                                                         {"agent", &view.scope.agent},
                                                         {"run", &view.scope.run},
                                                         {"ingest_time", &view.ingest_time}};
  for (const auto& [key, target] : fields) {
    INFERSCALE_ASSIGN_OR_RETURN(*target, string_member(json, key));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t version,
                              number_member(json, "version", UINT32_MAX));
  view.version = static_cast<std::uint32_t>(version);
  INFERSCALE_ASSIGN_OR_RETURN(line.versions, number_member(json, "history", UINT32_MAX));
  INFERSCALE_ASSIGN_OR_RETURN(view.source_turns, sources_of(json));
  INFERSCALE_ASSIGN_OR_RETURN(view.metadata, metadata_text(content));
  if (view.id.empty() || view.text.empty()) {
    return invalid_argument("id or text: missing");
  }
  return line;
}

Result<FactHistoryRow> read_exported_version(std::string_view content) {
  INFERSCALE_ASSIGN_OR_RETURN(const Json json, object_of(content));
  FactHistoryRow row;
  const std::pair<const char*, std::string*> fields[] = {{"text", &row.text},
                                                         {"event_time", &row.event_time},
                                                         {"valid_from", &row.valid_from},
                                                         {"valid_to", &row.valid_to}};
  for (const auto& [key, target] : fields) {
    INFERSCALE_ASSIGN_OR_RETURN(*target, string_member(json, key));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t version,
                              number_member(json, "version", UINT32_MAX));
  row.version = static_cast<std::uint32_t>(version);
  INFERSCALE_ASSIGN_OR_RETURN(row.metadata, metadata_text(content));
  return row;
}

Result<ExportHeader> read_export_header(std::string_view text) {
  if (text.size() > export_format::kMaxLineBytes) {
    return invalid_argument("the header is too long");
  }
  if (text.starts_with(kByteOrderMark)) {
    return invalid_argument(
        "a byte order mark (BOM) stands before it; save the file as UTF-8 without one");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Json json, object_of(text));
  INFERSCALE_ASSIGN_OR_RETURN(const std::string format, string_member(json, "format"));
  if (format != export_format::kName) {
    return invalid_argument("it does not say that this is an export of InferScale");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t version,
                              number_member(json, "version", UINT32_MAX));
  if (version != export_format::kVersion) {
    return unsupported(fmt::format("format version {}, this program knows {}: use a newer one",
                                   version, export_format::kVersion));
  }
  ExportHeader header;
  const auto found = json.find("scope");
  if (found == json.end() || !found->is_object()) {
    return invalid_argument("scope: missing");
  }
  INFERSCALE_ASSIGN_OR_RETURN(header.scope.tenant, string_member(*found, "tenant"));
  INFERSCALE_ASSIGN_OR_RETURN(header.scope.user, string_member(*found, "user"));
  if (const Result<ExportCounts> counts = read_counts(json); counts.ok()) {
    header.counts = *counts;  // without them it was changed, which the end says
  }
  return header;
}

Result<ExportEnd> read_export_end(std::string_view content) {
  INFERSCALE_ASSIGN_OR_RETURN(const Json json, object_of(content));
  ExportEnd end;
  INFERSCALE_ASSIGN_OR_RETURN(end.lines, number_member(json, "lines", UINT64_MAX));
  INFERSCALE_ASSIGN_OR_RETURN(end.sha256_128, string_member(json, "sha256_128"));
  return end;
}

}  // namespace inferscale
