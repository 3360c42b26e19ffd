#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cli/eval/dataset.h"
#include "inferscale/status.h"

namespace inferscale::cli {

/// The causes that a synthetic set isolates, one a case; also the category of its questions.
///   single_hop   one fact says it
///   multi_value  several facts about one person say different things: the one of a day of the
///                week is asked for, or the latest by date
///   two_hop      one fact leads to the person that another is about
///   update       a value and a later one, told apart by their dates: the current one is asked for,
///                or the one on a date
///   pronoun      the fact says "she" or "he"; who that is stands in its source turn or in the turn
///                before, and `needed_turns` names those
///   distractors  every fact is alike: colours of the same things of other people, and of other
///                things of the same person
inline constexpr std::array<std::string_view, 6> kSyntheticKinds = {
    "single_hop", "multi_value", "two_hop", "update", "pronoun", "distractors"};

struct SyntheticOptions {
  std::uint64_t seed = 1;
  std::uint32_t cases_per_kind = 8;      ///< 1 to 1,000
  std::uint32_t facts_per_case = 40;     ///< 16 to 128, and at least 8 times `questions_per_case`
  std::uint32_t questions_per_case = 4;  ///< 1 to 8
};

/// A made-up set for small models: answers are single common words, and the 3 to 7 distractors of a
/// question are words of the same kind from the same case, of which none is a right answer too.
/// Facts are dated, later ones later; the last eighth of a case's facts is asked about by nobody.
/// Two people, about whom there is no fact, speak the turns. The set is the same on every platform
/// for the same options, and a case does not depend on how many others there are. Errors:
/// kInvalidArgument (options out of bounds; the message names the field). Thread-safe.
[[nodiscard]] Result<EvalSet> make_synthetic_set(const SyntheticOptions& options);

}  // namespace inferscale::cli
