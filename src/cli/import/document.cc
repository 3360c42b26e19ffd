#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

ImportDocument lines_of(std::string_view text) {
  ImportDocument document;
  document.kind = ImportDocument::Kind::kLines;
  std::uint64_t number = 0;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    ++number;
    const std::string_view line = trim_json(text.substr(from, end - from));
    if (!line.empty()) {
      document.records.push_back(line);
      document.lines.push_back(number);
    }
    from = end + 1;
  }
  return document;
}

/// JSON Lines is taken for granted only when its first lines are values of their own; a document
/// that is cut off would otherwise give an error for each of its lines.
bool looks_like_lines(const ImportDocument& lines) {
  constexpr std::size_t kProbe = 20;
  const std::size_t probe = std::min(lines.records.size(), kProbe);
  return std::any_of(lines.records.begin(), lines.records.begin() + static_cast<long>(probe),
                     [](std::string_view record) { return json_members(record).ok(); });
}

Result<std::string> unix_time(double value) {
  constexpr double kMillisecondsFrom = 1e11;  // the year 5138 in seconds, 1973 in milliseconds
  constexpr double kYear9999 = 253402300800.0;
  const double seconds = std::abs(value) >= kMillisecondsFrom ? value / 1e3 : value;
  if (!std::isfinite(seconds) || seconds < 0 || seconds >= kYear9999) {
    return invalid_argument(fmt::format("time: {} is not a unix time", value));
  }
  return format_rfc3339(static_cast<TimestampUs>(std::llround(seconds * 1e6)));
}

}  // namespace

std::string ImportDocument::place(std::size_t record) const {
  return kind == Kind::kLines ? fmt::format("line {}", lines[record])
                              : fmt::format("item {}", record);
}

Result<ImportDocument> open_document(std::string_view bytes) {
  if (bytes.size() > kMaxImportBytes) {
    return resource_exhausted("the file is larger than 1 GiB; import it in parts");
  }
  const std::string_view text = trim_json(bytes);
  if (text.empty()) {
    return invalid_argument("the file is empty");
  }
  ImportDocument document;
  if (text[0] == '[') {
    INFERSCALE_ASSIGN_OR_RETURN(document.records, json_elements(text));
    return document;
  }
  const Result<std::size_t> end = json_value_end(text, 0);
  if (text[0] == '{' && end.ok() && *end == text.size()) {
    document.kind = ImportDocument::Kind::kObject;
    document.records = {text};
    return document;
  }
  ImportDocument lines = lines_of(text);
  if (looks_like_lines(lines)) {
    return lines;
  }
  return end.ok() ? invalid_argument("neither a JSON document nor JSON Lines") : end.status();
}

Result<ImportDocument> unwrap(const ImportDocument& document,
                              std::span<const std::string_view> keys) {
  if (document.kind != ImportDocument::Kind::kObject) {
    return document;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<JsonMember> members,
                              json_members(document.records[0]));
  for (const JsonMember& member : members) {
    if (std::find(keys.begin(), keys.end(), member.key) != keys.end()) {
      ImportDocument inner;
      INFERSCALE_ASSIGN_OR_RETURN(inner.records, json_elements(member.value));
      return inner;
    }
  }
  return document;
}

void add_error(ImportBatch& batch, std::uint64_t item, const Status& status) {
  batch.errors.push_back({item, status.code(), status.message()});
}

void read_records(const ImportDocument& document, ImportBatch& batch, const RecordReader& read) {
  for (std::size_t i = 0; i < document.records.size(); ++i) {
    const Result<nlohmann::ordered_json> record = parse_json_item(document.records[i]);
    Status status = record.status();
    if (status.ok()) {
      status = record->is_object() ? read(i, *record) : invalid_argument("expected an object");
    }
    if (!status.ok()) {
      add_error(batch, i, status.with_context(document.place(i)));
    }
  }
}

Result<std::string> string_member(const nlohmann::ordered_json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return std::string();
  }
  if (!found->is_string()) {
    return invalid_argument(
        fmt::format("{}: expected a string, found {}", key, found->type_name()));
  }
  return found->get<std::string>();
}

Result<std::string> time_member(const nlohmann::ordered_json& object,
                                std::span<const char* const> keys) {
  for (const char* const key : keys) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) {
      continue;
    }
    if (found->is_number()) {
      return unix_time(found->get<double>());
    }
    INFERSCALE_ASSIGN_OR_RETURN(const std::string text, string_member(object, key));
    if (text.empty()) {
      continue;
    }
    if (const Result<ParsedTime> time = parse_rfc3339(text); !time.ok()) {
      return time.status().with_context(key);
    }
    return text;
  }
  return std::string();
}

}  // namespace inferscale
