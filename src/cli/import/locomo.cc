#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <regex>

#include "base/clock.h"
#include "base/utf8.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSessionPrefix = "session_";

/// "1:56 pm on 8 May, 2023", which names no zone and is taken as UTC.
Result<std::string> session_time(const std::string& text) {
  static constexpr std::array<std::string_view, 12> kMonths = {
      "january", "february", "march",     "april",   "may",      "june",
      "july",    "august",   "september", "october", "november", "december"};
  static const std::regex kForm(R"((\d{1,2}):(\d{2}) ?([ap])m on (\d{1,2}) ([a-z]+),? (\d{4}))",
                                std::regex::icase | std::regex::optimize);
  std::smatch part;
  const std::string line = single_line(text);
  if (line.size() > 64 || !std::regex_match(line, part, kForm)) {
    return invalid_argument("date: expected a form like \"1:56 pm on 8 May, 2023\"");
  }
  std::string month = part[5].str();
  std::transform(month.begin(), month.end(), month.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto found = std::find(kMonths.begin(), kMonths.end(), month);
  const bool afternoon = part[3].str() == "p" || part[3].str() == "P";
  const std::string written =
      fmt::format("{}-{:02}-{:02}T{:02}:{}:00Z", part[6].str(), found - kMonths.begin() + 1,
                  std::stoi(part[4].str()), std::stoi(part[1].str()) % 12 + (afternoon ? 12 : 0),
                  part[2].str());
  INFERSCALE_ASSIGN_OR_RETURN(const ParsedTime time, parse_rfc3339(written));
  return format_rfc3339(time.time);
}

/// "session_12" gives 12, "session_12_observation" gives 12 for that suffix; anything else 0.
int session_number(std::string_view key, std::string_view suffix) {
  if (key.substr(0, kSessionPrefix.size()) != kSessionPrefix ||
      key.size() <= kSessionPrefix.size() + suffix.size() ||
      key.substr(key.size() - suffix.size()) != suffix) {
    return 0;
  }
  key.remove_prefix(kSessionPrefix.size());
  key.remove_suffix(suffix.size());
  int number = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  return error == std::errc() && end == key.data() + key.size() ? number : 0;
}

/// Sessions in the order of their numbers, which is not that of their names.
std::map<int, const Json*> sessions_of(const Json& object, std::string_view suffix) {
  std::map<int, const Json*> sessions;
  for (const auto& [key, value] : object.items()) {
    if (const int number = session_number(key, suffix); number > 0) {
      sessions[number] = &value;
    }
  }
  return sessions;
}

/// Length of the turn id ("D8:6") that `text` begins with, or 0.
std::size_t turn_id_length(std::string_view text) {
  const auto digits = [text](std::size_t from) {
    return std::min(text.find_first_not_of("0123456789", from), text.size()) - from;
  };
  if (text.empty() || text[0] != 'D' || digits(1) == 0) {
    return 0;
  }
  const std::size_t colon = 1 + digits(1);
  if (colon >= text.size() || text[colon] != ':' || digits(colon + 1) == 0) {
    return 0;
  }
  return colon + 1 + digits(colon + 1);
}

class LocomoReader {
 public:
  explicit LocomoReader(ImportBatch& batch) : batch_(batch) {}

  Status read_turns(const Json& conversation) {
    INFERSCALE_ASSIGN_OR_RETURN(first_speaker_, string_member(conversation, "speaker_a"));
    for (const auto& [number, session] : sessions_of(conversation, "")) {
      read_time(number, conversation);
      if (!session->is_array()) {
        refuse(number, invalid_argument("expected a list of turns"));
        continue;
      }
      for (const Json& turn : *session) {
        if (const Status status = read_turn(turn, times_[number]); !status.ok()) {
          refuse(number, status);
        }
        ++item_;
      }
    }
    return {};
  }

  void read_observations(const Json& observation) {
    for (const auto& [number, speakers] : sessions_of(observation, "_observation")) {
      for (const auto& [speaker, facts] : speakers->items()) {
        for (const Json& fact : facts) {
          if (const Status status = read_observation(fact, times_[number]); !status.ok()) {
            refuse(number, status.with_context("observation"));
          }
          ++item_;
        }
      }
    }
  }

 private:
  void refuse(int session, const Status& status) {
    add_error(batch_, item_, status.with_context(fmt::format("session_{}", session)));
  }

  void read_time(int number, const Json& conversation) {
    const std::string key = fmt::format("session_{}_date_time", number);
    const Result<std::string> text = string_member(conversation, key.c_str());
    const Result<std::string> time =
        text.ok() ? session_time(*text) : Result<std::string>(text.status());
    if (time.ok()) {
      times_[number] = *time;
    } else {
      refuse(number, time.status());
    }
  }

  Status read_turn(const Json& record, const std::string& time) {
    if (!record.is_object()) {
      return invalid_argument("a turn is not an object");
    }
    TurnInput turn;
    INFERSCALE_ASSIGN_OR_RETURN(turn.id, string_member(record, "dia_id"));
    INFERSCALE_ASSIGN_OR_RETURN(turn.speaker, string_member(record, "speaker"));
    INFERSCALE_ASSIGN_OR_RETURN(turn.text, string_member(record, "text"));
    INFERSCALE_ASSIGN_OR_RETURN(const std::string picture, string_member(record, "blip_caption"));
    if (!picture.empty()) {
      turn.text += fmt::format("{}[shares a picture: {}]", turn.text.empty() ? "" : " ", picture);
    }
    if (turn.id.empty() || turn.speaker.empty() || turn.text.empty()) {
      return invalid_argument("a turn needs dia_id, speaker and text");
    }
    INFERSCALE_RETURN_IF_ERROR(check_speaker(turn.speaker));
    turn.role = turn.speaker == first_speaker_ ? "user" : "assistant";
    turn.event_time = time;
    batch_.turns.push_back(std::move(turn));
    batch_.turn_items.push_back(item_);
    return {};
  }

  Status read_observation(const Json& record, const std::string& time) {
    if (!record.is_array() || record.size() != 2 || !record[0].is_string()) {
      return invalid_argument("expected [text, turn ids]");
    }
    FactInput fact;
    fact.text = record[0].get<std::string>();
    fact.event_time = time;
    collect_locomo_turn_ids(record[1], fact.source_turns);
    batch_.facts.push_back(std::move(fact));
    batch_.fact_items.push_back(item_);
    return {};
  }

  ImportBatch& batch_;
  std::uint64_t item_ = 0;  // counts turns, then observations
  std::string first_speaker_;
  std::map<int, std::string> times_;
};

std::string sample_id(std::string_view record) {
  const Result<std::vector<JsonMember>> members = json_members(record);
  if (members.ok()) {
    for (const JsonMember& member : *members) {
      const Result<Json> value = member.key == "sample_id"
                                     ? parse_json_item(member.value)
                                     : Result<Json>(not_found("another member"));
      if (value.ok() && value->is_string()) {
        return value->get<std::string>();
      }
    }
  }
  return {};
}

Result<std::string_view> choose_conversation(const ImportDocument& document,
                                             const std::string& wanted) {
  std::vector<std::string> ids;
  for (const std::string_view record : document.records) {
    ids.push_back(sample_id(record));
    if (!wanted.empty() && ids.back() == wanted) {
      return record;
    }
  }
  if (!wanted.empty()) {
    return not_found(fmt::format("no conversation \"{}\" in the file; it has: {}", wanted,
                                 fmt::join(ids, ", ")));
  }
  if (document.records.size() != 1) {
    return invalid_argument(
        fmt::format("the file holds {} conversations; choose one with --conversation ID: {}",
                    ids.size(), fmt::join(ids, ", ")));
  }
  return document.records[0];
}

}  // namespace

void collect_locomo_turn_ids(const Json& source, std::vector<std::string>& ids) {
  if (source.is_array()) {
    for (const Json& element : source) {
      collect_locomo_turn_ids(element, ids);
    }
    return;
  }
  const std::string text = source.is_string() ? source.get<std::string>() : std::string();
  for (std::size_t at = text.find('D'); at != std::string::npos; at = text.find('D', at + 1)) {
    if (const std::size_t length = turn_id_length(std::string_view(text).substr(at))) {
      ids.push_back(text.substr(at, length));
    }
  }
}

Result<ImportBatch> read_locomo(const ImportDocument& document, const ImportOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string_view text,
                              choose_conversation(document, options.conversation));
  INFERSCALE_ASSIGN_OR_RETURN(const Json record, parse_json_item(text));
  const auto conversation = record.find("conversation");
  if (conversation == record.end() || !conversation->is_object()) {
    return invalid_argument("a LoCoMo item needs an object \"conversation\"");
  }
  ImportBatch batch;
  batch.format = ImportFormat::kLocomo;
  LocomoReader reader(batch);
  INFERSCALE_RETURN_IF_ERROR(reader.read_turns(*conversation));
  if (options.facts_from_turns) {
    const auto observation = record.find("observation");
    if (observation != record.end() && observation->is_object()) {
      reader.read_observations(*observation);
    } else {
      add_turn_facts(batch, std::vector<bool>(batch.turns.size(), true));
    }
  }
  return batch;
}

}  // namespace inferscale
