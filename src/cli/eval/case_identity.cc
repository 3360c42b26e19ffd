#include "cli/eval/case_identity.h"

#include <algorithm>

#include "base/hash.h"

namespace inferscale::cli {

std::string case_digest(const EvalCase& data) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += part + '\n'; };
  for (const TurnInput& turn : data.turns) {
    add(turn.speaker);
    add(turn.text);
  }
  for (const FactInput& fact : data.facts) {
    add(fact.text);
    add(fact.event_time);
  }
  for (const EvalQuestion& question : data.questions) {
    add(question.id);
    add(question.text);
    add(question.answer);
    std::for_each(question.distractors.begin(), question.distractors.end(), add);
  }
  return sha256_128(as_byte_span(text)).to_hex();
}

std::string folder_name(std::string_view text) {
  std::string name;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_';
    name += plain ? c : '_';
  }
  return name;
}

}  // namespace inferscale::cli
