#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/eval/draw.h"

namespace inferscale::cli {

/// What stands for a placeholder ("{N}") of a sentence.
struct SyntheticWord {
  std::string_view placeholder;
  std::string_view text;
};

[[nodiscard]] std::string fill_words(std::string_view pattern,
                                     std::initializer_list<SyntheticWord> words);

/// A fact before it has a place and a date.
struct SyntheticDraft {
  std::string text;
  std::string_view value;  ///< empty: names a person instead
  std::size_t topic = 0;
  std::string asked_before;  ///< what the other speaker says before; empty: nothing
  std::string said;          ///< the turn that the fact is taken from; empty: made of the fact
};

struct SyntheticAsk {
  std::string question;  ///< {D} in it: the date of the first evidence
  std::string_view answer;
  std::size_t topic = 0;
  std::vector<std::size_t> evidence;  ///< drafts
  std::vector<std::size_t> rivals;    ///< drafts whose values are the first distractors
  bool needs_turns = false;
};

/// All of a case but order and dates. Views are of static words.
struct SyntheticCaseDraft {
  std::array<std::string_view, 2> speakers;
  std::vector<SyntheticDraft> drafts;
  std::vector<SyntheticAsk> asks;
  std::vector<std::vector<std::size_t>> ordered;  ///< drafts that must be learned in this order
};

/// REQUIRES: the bounds of SyntheticOptions (cli/eval/synthetic.h); a kind of kSyntheticKinds.
[[nodiscard]] SyntheticCaseDraft draft_synthetic_case(std::string_view kind, std::size_t facts,
                                                      std::size_t questions, SeededDraw& draw);

}  // namespace inferscale::cli
