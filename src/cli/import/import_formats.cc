#include "cli/import/import_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/utf8.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<ImportFormat, const char*>, 5> kNames = {{
    {ImportFormat::kAuto, "auto"},
    {ImportFormat::kOpenAi, "openai"},
    {ImportFormat::kMem0, "mem0"},
    {ImportFormat::kLocomo, "locomo"},
    {ImportFormat::kInferscale, "inferscale"},
}};

/// What tells a format apart is a member of its first item, or of the object around the list.
ImportFormat format_of_members(const std::vector<JsonMember>& members) {
  static const std::array<std::pair<std::string_view, ImportFormat>, 6> kMarks = {{
      {"conversation", ImportFormat::kLocomo},
      {"messages", ImportFormat::kOpenAi},
      {"role", ImportFormat::kOpenAi},
      {"results", ImportFormat::kMem0},
      {"memories", ImportFormat::kMem0},
      {"memory", ImportFormat::kMem0},
  }};
  for (const auto& [mark, format] : kMarks) {
    for (const JsonMember& member : members) {
      if (member.key == mark) {
        return format;
      }
    }
  }
  return ImportFormat::kAuto;
}

Result<ImportFormat> recognise(const ImportDocument& document) {
  constexpr std::size_t kProbe = 20;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < std::min(document.records.size(), kProbe); ++i) {
    const Result<std::vector<JsonMember>> members = json_members(document.records[i]);
    if (!members.ok()) {
      continue;
    }
    if (const ImportFormat format = format_of_members(*members); format != ImportFormat::kAuto) {
      return format;
    }
    for (const JsonMember& member : *members) {
      if (find_invalid_utf8(member.key) == std::string_view::npos) {
        seen.emplace(single_line(utf8_prefix(member.key, 32)));
      }
    }
  }
  const std::string found =
      seen.empty() ? "no objects" : fmt::format("objects with {}", fmt::join(seen, ", "));
  return invalid_argument(
      fmt::format("cannot tell the format: the file has {}, but a chat (openai) has \"role\" or "
                  "\"messages\", a Mem0 export \"memory\" or \"results\", LoCoMo "
                  "\"conversation\", an export of InferScale (inferscale) \"format\" in its first "
                  "line; name the format with --format openai|mem0|locomo|inferscale",
                  utf8_prefix(found, 400)));
}

Result<std::vector<std::string>> sources_of(const Json& record) {
  const auto found = record.find("source_turns");
  std::vector<std::string> sources;
  if (found == record.end() || found->is_null()) {
    return sources;
  }
  if (!found->is_array()) {
    return invalid_argument("source_turns: expected a list of turn ids");
  }
  for (const Json& id : *found) {
    if (!id.is_string()) {
      return invalid_argument("source_turns: expected a list of turn ids");
    }
    sources.push_back(id.get<std::string>());
  }
  return sources;
}

Result<FactInput> read_fact(const Json& record) {
  static constexpr std::array<const char*, 2> kTimeKeys = {"event_time", "time"};
  FactInput fact;
  INFERSCALE_ASSIGN_OR_RETURN(fact.text, string_member(record, "text"));
  if (single_line(fact.text).empty()) {
    return invalid_argument("text: empty");
  }
  INFERSCALE_ASSIGN_OR_RETURN(fact.event_time, time_member(record, kTimeKeys));
  INFERSCALE_ASSIGN_OR_RETURN(fact.source_turns, sources_of(record));
  if (const auto metadata = record.find("metadata");
      metadata != record.end() && !metadata->is_null()) {
    if (!metadata->is_object()) {
      return invalid_argument("metadata: expected an object");
    }
    fact.metadata = metadata->dump();
  }
  return fact;
}

}  // namespace

const char* import_format_name(ImportFormat format) {
  for (const auto& [value, name] : kNames) {
    if (value == format) {
      return name;
    }
  }
  return "auto";
}

Result<ImportFormat> parse_import_format(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (name == known) {
      return value;
    }
  }
  return invalid_argument(fmt::format(
      "format \"{}\" is none of auto, openai, mem0, locomo, inferscale", utf8_prefix(name, 32)));
}

Result<ImportBatch> parse_import(std::string_view bytes, const ImportOptions& options) {
  if (options.format == ImportFormat::kInferscale ||
      (options.format == ImportFormat::kAuto && is_export(bytes))) {
    return read_export(bytes, options);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const ImportDocument document, open_document(bytes));
  ImportFormat format = options.format;
  if (format == ImportFormat::kAuto) {
    INFERSCALE_ASSIGN_OR_RETURN(format, recognise(document));
  }
  switch (format) {
    case ImportFormat::kMem0:
      return read_mem0(document, options);
    case ImportFormat::kLocomo:
      return read_locomo(document, options);
    default:
      return read_openai(document, options);
  }
}

Result<ImportBatch> parse_facts_file(std::string_view bytes) {
  INFERSCALE_ASSIGN_OR_RETURN(const ImportDocument document, open_document(bytes));
  ImportBatch batch;
  read_records(document, batch, [&](std::size_t index, const Json& record) -> Status {
    INFERSCALE_ASSIGN_OR_RETURN(FactInput fact, read_fact(record));
    batch.facts.push_back(std::move(fact));
    batch.fact_items.push_back(index);
    return {};
  });
  return batch;
}

}  // namespace inferscale
