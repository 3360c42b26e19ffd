#include <fmt/format.h>

#include "base/split_text.h"
#include "base/utf8.h"
#include "cli/import/readers.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxSpeakerBytes = 256;

bool is_person(const TurnInput& turn) { return turn.role == "user" || turn.role == "assistant"; }

}  // namespace

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
