#include <fmt/format.h>

#include <array>
#include <unordered_set>

#include "base/hash.h"
#include "base/utf8.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

using Json = nlohmann::ordered_json;

Result<std::string> role_of(const Json& record) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string role, string_member(record, "role"));
  if (role == "user" || role == "assistant" || role == "system" || role == "tool") {
    return role;
  }
  if (role == "developer") {
    return std::string("system");
  }
  if (role == "function") {
    return std::string("tool");
  }
  return invalid_argument(
      fmt::format("role: \"{}\" is none of user, assistant, system, developer, tool, function",
                  utf8_prefix(role, 64)));
}

void append_line(std::string_view line, std::string& text) {
  if (!text.empty() && !line.empty()) {
    text.push_back('\n');
  }
  text.append(line);
}

/// A string, or the text parts of a list, a line each; other parts have no words.
Result<std::string> content_of(const Json& record) {
  const auto found = record.find("content");
  if (found == record.end() || !found->is_array()) {
    return string_member(record, "content");
  }
  std::string text;
  for (const Json& part : *found) {
    if (part.is_string()) {
      append_line(part.get_ref<const std::string&>(), text);
      continue;
    }
    if (!part.is_object()) {
      return invalid_argument("content: a part is neither a string nor an object");
    }
    INFERSCALE_ASSIGN_OR_RETURN(const std::string words, string_member(part, "text"));
    append_line(words, text);
  }
  return text;
}

/// Taken from place and content, so that a second import of a grown file finds the same ids.
std::string made_up_id(std::size_t index, const TurnInput& turn) {
  const std::string words = turn.role + '\0' + turn.speaker + '\0' + turn.text;
  return fmt::format("t{:06}-{}", index, xxh3_128(as_byte_span(words)).to_hex().substr(0, 8));
}

Result<std::string> id_of(const Json& record) {
  const auto found = record.find("id");
  if (found != record.end() && found->is_number_integer()) {
    return found->dump();
  }
  return string_member(record, "id");
}

std::string default_speaker(const std::string& role) {
  std::string speaker = role;
  speaker[0] = static_cast<char>(speaker[0] - 'a' + 'A');
  return speaker;
}

struct Message {
  TurnInput turn;
  bool named = false;
};

Result<Message> read_message(const Json& record, std::size_t index) {
  static constexpr std::array<const char*, 2> kTimeKeys = {"time", "timestamp"};
  Message message;
  TurnInput& turn = message.turn;
  INFERSCALE_ASSIGN_OR_RETURN(turn.role, role_of(record));
  INFERSCALE_ASSIGN_OR_RETURN(turn.text, content_of(record));
  INFERSCALE_ASSIGN_OR_RETURN(const std::string name, string_member(record, "name"));
  INFERSCALE_ASSIGN_OR_RETURN(turn.event_time, time_member(record, kTimeKeys));
  INFERSCALE_ASSIGN_OR_RETURN(turn.id, id_of(record));
  turn.speaker = single_line(name);
  INFERSCALE_RETURN_IF_ERROR(check_speaker(turn.speaker));
  message.named = !turn.speaker.empty();
  if (!message.named) {
    turn.speaker = default_speaker(turn.role);
  }
  if (turn.id.empty()) {
    turn.id = made_up_id(index, turn);
  }
  return message;
}

}  // namespace

Result<ImportBatch> read_openai(const ImportDocument& document, const ImportOptions& options) {
  static constexpr std::array<std::string_view, 1> kListKeys = {"messages"};
  INFERSCALE_ASSIGN_OR_RETURN(const ImportDocument messages, unwrap(document, kListKeys));
  ImportBatch batch;
  batch.format = ImportFormat::kOpenAi;
  std::vector<bool> named;
  std::unordered_set<std::string> ids;
  read_records(messages, batch, [&](std::size_t index, const Json& record) -> Status {
    INFERSCALE_ASSIGN_OR_RETURN(Message message, read_message(record, index));
    if (single_line(message.turn.text).empty()) {
      ++batch.skipped;
      return {};
    }
    if (!ids.insert(message.turn.id).second) {
      return conflict(fmt::format("id \"{}\" stands in the file twice", message.turn.id));
    }
    batch.turns.push_back(std::move(message.turn));
    batch.turn_items.push_back(index);
    named.push_back(message.named);
    return {};
  });
  if (options.facts_from_turns) {
    add_turn_facts(batch, named);
  }
  return batch;
}

}  // namespace inferscale
