#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inferscale/memory_types.h"

namespace inferscale::cli {

/// A question about a case's facts, and what is known of its answer.
struct EvalQuestion {
  std::string id;  ///< unique within its case
  std::string text;
  std::string category;                  ///< "single_hop", "temporal", …
  std::string answer;                    ///< the gold answer, one line, never empty
  std::vector<std::string> distractors;  ///< wrong answers of the same kind; may be empty
  std::vector<std::size_t> evidence;     ///< indices of the facts that hold the answer
  /// Indices of turns without which the facts do not say who or what is meant: the reference arm
  /// reads them before the facts, the others know them through the encode context at most.
  std::vector<std::size_t> needed_turns;
};

/// One person's memory: a conversation's turns, the facts taken from it, questions about them.
struct EvalCase {
  std::string id;  ///< unique within its set
  std::vector<TurnInput> turns;
  std::vector<FactInput> facts;  ///< in the order in which they were learned
  std::vector<EvalQuestion> questions;
};

struct EvalSet {
  std::string name;  ///< "locomo", "synthetic"
  std::vector<EvalCase> cases;
};

}  // namespace inferscale::cli
