#include "memory/contexts/turn_contexts.h"

#include <algorithm>
#include <iterator>

#include "base/utf8.h"
#include "memory/contexts/context_lines.h"

namespace inferscale {
namespace {

// 50 turns of a long conversation between friends are about 1,800 tokens.
constexpr std::size_t kMaxTurnTokens = 2560;
// No text of so many bytes is that few tokens: it need not be tokenized to know.
constexpr std::size_t kMaxTurnBytes = 32 * kMaxTurnTokens;
constexpr std::size_t kFallbackPrimer = 8;

/// Those of the fact's own scope that are there.
Result<std::vector<Turn>> source_turns(Catalog& catalog, const Fact& fact) {
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<Turn> turns,
                              catalog.get_turns(fact.scope, fact.source_turns));
  std::erase_if(turns, [&](const Turn& turn) { return turn.scope != fact.scope; });
  return turns;
}

/// "Speaker: text\n"; the role stands for a speaker without a name.
std::string turn_line(const Turn& turn) {
  const std::string speaker = single_line(turn.speaker);
  const std::string words = single_line(turn.text);
  return (speaker.empty() ? turn.role : speaker) + ": " + words + "\n";
}

/// As many of the last turns as the bound allows.
Status append_turns(const Tokenizer& tokenizer, std::span<const Turn> turns, EncodeGroup& group) {
  std::vector<std::vector<TokenId>> lines;  // newest first
  std::size_t used = 0;
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    if (turn->text.size() + turn->speaker.size() > kMaxTurnBytes) {
      break;
    }
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<TokenId> line,
                                tokenizer.encode(turn_line(*turn), false));
    used += line.size();
    if (used > kMaxTurnTokens) {
      break;
    }
    lines.push_back(std::move(line));
    group.attended_turns.push_back(turn->id);
  }
  std::move(lines.rbegin(), lines.rend(), std::back_inserter(group.lines));
  return {};
}

}  // namespace

Result<std::vector<EncodeGroup>> TurnsContext::split(std::span<const Fact> facts,
                                                     std::size_t max_group) const {
  return split_facts(facts, max_group, [](const Fact& previous, const Fact& next) -> Result<bool> {
    return previous.source_turns == next.source_turns;
  });
}

Status TurnsContext::fill(EncodeGroup& group) const {
  const Fact& fact = group.facts.front();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Turn> sources,
                              source_turns(sources_.catalog, fact));
  if (sources.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(group.fixed_lines,
                                primer_tokens(sources_.tokenizer, kFallbackPrimer));
    return {};
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Turn> before,
                              sources_.catalog.turns_before(fact.scope, sources.front().id, w_));
  return append_turns(sources_.tokenizer, before, group);
}

}  // namespace inferscale
