#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/utf8.h"
#include "cli/import/export_format.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

using Json = nlohmann::ordered_json;

/// One line of the file: what it is, and its content.
struct Line {
  std::string kind;          ///< "turn", "fact", "version", "end"
  std::string_view content;  ///< text of the value
};

/// Cuts the bytes into lines. A last line without its newline was cut off.
class Lines {
 public:
  explicit Lines(std::string_view bytes) : bytes_(bytes) {}
  /// Nothing at the end.
  std::optional<std::string_view> next() {
    if (at_ >= bytes_.size()) {
      return std::nullopt;
    }
    const std::size_t end = bytes_.find('\n', at_);
    whole_ = end != std::string_view::npos;
    const std::string_view line = bytes_.substr(at_, (whole_ ? end : bytes_.size()) - at_);
    at_ += line.size() + 1;
    ++number_;
    return line;
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }  ///< of the last line, from 1
  [[nodiscard]] bool whole() const { return whole_; }             ///< it ended in a newline
  [[nodiscard]] std::size_t at() const { return std::min(at_, bytes_.size()); }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
  std::uint64_t number_ = 0;
  bool whole_ = false;
};

Result<Line> split_line(std::string_view text) {
  if (text.size() > export_format::kMaxLineBytes) {
    return invalid_argument(fmt::format("longer than {} bytes", export_format::kMaxLineBytes));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<JsonMember> members, json_members(text));
  if (members.size() != 1) {
    return invalid_argument("expected one of turn, fact, version and end");
  }
  return Line{std::string(members[0].key), members[0].value};
}

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

Result<TurnView> read_turn(std::string_view content, const Scope& owner) {
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

struct FactLine {
  ExportedFact fact;
  std::uint64_t versions = 0;  ///< lines that follow with its history
};

Result<FactLine> read_fact(std::string_view content, const Scope& owner) {
  INFERSCALE_ASSIGN_OR_RETURN(const Json json, object_of(content));
  FactLine line;
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

Result<FactHistoryRow> read_version(std::string_view content) {
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

Result<Scope> read_header(std::string_view text) {
  if (text.size() > export_format::kMaxLineBytes) {
    return invalid_argument("the header is too long");
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
  Scope scope;
  const auto found = json.find("scope");
  if (found == json.end() || !found->is_object()) {
    return invalid_argument("scope: missing");
  }
  INFERSCALE_ASSIGN_OR_RETURN(scope.tenant, string_member(*found, "tenant"));
  INFERSCALE_ASSIGN_OR_RETURN(scope.user, string_member(*found, "user"));
  return scope;  // agent and run are those of each line
}

class ExportReader {
 public:
  ExportReader(std::string_view bytes, const Scope& owner, Lines lines, ImportBatch& batch)
      : bytes_(bytes), owner_(owner), lines_(lines), batch_(batch), body_(lines.at()) {}

  /// Reads to the end; what is wrong with the file as a whole.
  Status run() {
    while (const auto text = lines_.next()) {
      if (ended_) {
        return data_loss(fmt::format("line {}: something follows the end", lines_.number()));
      }
      const std::size_t begin = static_cast<std::size_t>(text->data() - bytes_.data());
      if (!lines_.whole()) {
        finish_fact();
        return data_loss(fmt::format("line {} is cut off", lines_.number()));
      }
      Result<Line> line = split_line(*text);
      Status status = line.status();
      if (line.ok()) {
        status = line->kind == "end" ? read_end(line->content, begin) : read_item(*line);
      }
      if (!status.ok() && status.code() == StatusCode::kDataLoss) {
        return status;
      }
      if (!status.ok()) {
        fact_broken_ = true;  // versions that follow belong to nothing
        report(status);
      }
    }
    finish_fact();
    return ended_ ? Status() : data_loss("its last lines are missing");
  }

 private:
  void report(const Status& status) {
    add_error(batch_, lines_.number() - 1,
              status.with_context(fmt::format("line {}", lines_.number())));
  }

  Status read_item(const Line& line) {
    ExportedItems& out = batch_.exported;
    if (line.kind == "version") {
      return take_version(line.content);
    }
    finish_fact();
    if (line.kind == "turn") {
      INFERSCALE_ASSIGN_OR_RETURN(TurnView turn, read_turn(line.content, owner_));
      out.turns.push_back(std::move(turn));
      out.turn_items.push_back(lines_.number() - 1);
      return {};
    }
    if (line.kind != "fact") {
      return invalid_argument("expected one of turn, fact, version and end");
    }
    INFERSCALE_ASSIGN_OR_RETURN(FactLine fact, read_fact(line.content, owner_));
    fact_ = std::move(fact);
    fact_item_ = lines_.number() - 1;
    return {};
  }

  Status take_version(std::string_view content) {
    if (fact_broken_) {
      return {};  // of a fact that was refused, which was reported
    }
    if (!fact_ || fact_->fact.history.size() >= fact_->versions) {
      return invalid_argument("a version that belongs to no fact");
    }
    INFERSCALE_ASSIGN_OR_RETURN(FactHistoryRow row, read_version(content));
    row.event = row.version == 1 ? "ADD" : "UPDATE";
    fact_->fact.history.push_back(std::move(row));
    return {};
  }

  /// A fact is whole when all its versions have come.
  void finish_fact() {
    if (fact_ && !fact_broken_ && fact_->fact.history.size() == fact_->versions) {
      batch_.exported.facts.push_back(std::move(fact_->fact));
      batch_.exported.fact_items.push_back(fact_item_);
    } else if (fact_) {
      add_error(batch_, fact_item_,
                invalid_argument(
                    fmt::format("line {}: {} of the {} versions of this fact follow it",
                                fact_item_ + 1, fact_->fact.history.size(), fact_->versions)));
    }
    fact_.reset();
    fact_broken_ = false;
  }

  Status read_end(std::string_view content, std::size_t begin) {
    ended_ = true;
    const Result<Json> json = object_of(content);
    if (!json.ok()) {
      return data_loss("its last line: " + json.status().message());
    }
    const Result<std::uint64_t> lines = number_member(*json, "lines", UINT64_MAX);
    const Result<std::string> given = string_member(*json, "sha256_128");
    if (!lines.ok() || !given.ok() || *lines != lines_.number() - 2) {
      return data_loss(
          fmt::format("{} lines stand between header and end, not as many as the end says",
                      lines_.number() - 2));
    }
    const Hash128 hash = sha256_128(as_byte_span(bytes_.substr(body_, begin - body_)));
    return hash.to_hex() == *given ? Status()
                                   : data_loss("the content is not what was written (checksum)");
  }

  const std::string_view bytes_;
  const Scope owner_;
  Lines lines_;
  ImportBatch& batch_;
  const std::size_t body_;  // where the line after the header begins
  std::optional<FactLine> fact_;
  std::uint64_t fact_item_ = 0;
  bool fact_broken_ = false;
  bool ended_ = false;
};

}  // namespace

bool is_export(std::string_view bytes) {
  Lines lines(bytes);
  const auto first = lines.next();
  if (!first || first->size() > (std::size_t{64} << 10)) {
    return false;
  }
  const Result<std::vector<JsonMember>> members = json_members(*first);
  return members.ok() && std::any_of(members->begin(), members->end(), [](const JsonMember& m) {
           return m.key == "format" && m.value == "\"inferscale\"";
         });
}

Result<ImportBatch> read_export(std::string_view bytes, const ImportOptions& options) {
  if (bytes.size() > kMaxImportBytes) {
    return resource_exhausted("the file is larger than 1 GiB");
  }
  ImportBatch batch;
  batch.format = ImportFormat::kInferscale;
  Lines lines(bytes);
  const auto first = lines.next();
  if (!first) {
    return invalid_argument("the file is empty");
  }
  const Result<Scope> owner = read_header(*first);
  if (!owner.ok()) {
    return owner.status().with_context("line 1");
  }
  const Status whole = ExportReader(bytes, *owner, lines, batch).run();
  if (whole.ok()) {
    return batch;
  }
  if (!options.salvage) {
    return data_loss("this export is damaged: " + whole.message() +
                     "; export again, or take what is whole of it with --salvage");
  }
  add_error(batch, lines.number(), whole);
  return batch;
}

}  // namespace inferscale
