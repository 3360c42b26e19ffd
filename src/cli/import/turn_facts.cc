#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxSpeakerBytes = 256;

/// Length of the first piece: at most `max_bytes`, cut at the best place in its second half.
std::size_t piece_length(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) {
    return text.size();
  }
  static constexpr std::array<std::string_view, 6> kEnds = {". ", "! ", "? ", "。", "！", "？"};
  const std::string_view window = utf8_prefix(text, max_bytes);
  std::size_t sentence = 0;
  for (const std::string_view end : kEnds) {
    if (const std::size_t at = window.rfind(end); at != std::string_view::npos) {
      sentence = std::max(sentence, at + end.size());
    }
  }
  if (sentence > max_bytes / 2) {
    return sentence;
  }
  const std::size_t space = window.rfind(' ');
  return space == std::string_view::npos || space == 0 ? window.size() : space;
}

bool is_person(const TurnInput& turn) { return turn.role == "user" || turn.role == "assistant"; }

}  // namespace

std::vector<std::string> split_text(std::string_view text, std::size_t max_bytes) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const std::size_t length = piece_length(text, max_bytes);
    std::string_view piece = text.substr(0, length);
    text.remove_prefix(length);
    while (!piece.empty() && piece.back() == ' ') {
      piece.remove_suffix(1);
    }
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (!piece.empty()) {
      pieces.emplace_back(piece);
    }
  }
  return pieces;
}

Status check_speaker(std::string_view speaker) {
  if (speaker.size() > kMaxSpeakerBytes) {
    return invalid_argument(fmt::format("speaker: {} bytes long; at most {} are accepted",
                                        speaker.size(), kMaxSpeakerBytes));
  }
  return {};
}

void add_turn_facts(ImportBatch& batch, const std::vector<bool>& named) {
  for (std::size_t i = 0; i < batch.turns.size(); ++i) {
    const TurnInput& turn = batch.turns[i];
    if (turn.role != "user" && !(named[i] && is_person(turn))) {
      continue;
    }
    const std::string prefix = turn.speaker + ": ";
    for (const std::string& piece :
         split_text(single_line(turn.text), kTurnFactBytes - prefix.size())) {
      FactInput fact;
      fact.text = prefix + piece;
      fact.event_time = turn.event_time;
      fact.source_turns = {turn.id};
      batch.facts.push_back(std::move(fact));
      batch.fact_items.push_back(batch.turn_items[i]);
    }
  }
}

}  // namespace inferscale
