#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/eval/dataset.h"

namespace inferscale::cli {

struct LocomoOptions {
  std::uint32_t conversations = 0;  ///< the first so many; 0: all
  std::vector<std::string> ids;     ///< not empty: these conversations instead
  std::uint32_t questions = 0;      ///< of each conversation, drawn with `seed`; 0: all
  bool adversarial = false;         ///< the questions without an answer too
  std::uint32_t distractors = 3;    ///< of each question that has no wrong answer of its own
  std::uint64_t seed = 1;
};

/// Reads LoCoMo (Maharana et al. 2024, arXiv 2402.17753): its observations are the facts, its
/// dialogue turns the turns; a question's evidence are the facts that cite its evidence turns, its
/// distractors answers to other questions of its category. Untrusted input. Errors:
/// kInvalidArgument (another format; nothing to ask), kNotFound (no such conversation).
[[nodiscard]] Result<EvalSet> read_locomo_set(std::string_view bytes, const LocomoOptions& options);

}  // namespace inferscale::cli
