#pragma once

#include <map>
#include <string>

#include "cli/eval/scorer.h"

namespace inferscale::cli {

/// An arm's figures for one question, by name (docs/evaluation.md). `gold`: the answer as the set
/// has it. `reference`: the arm that it is compared with; null: it is that one. What is not finite
/// is left out.
[[nodiscard]] std::map<std::string, double> arm_values(const ArmScores& scores,
                                                       const std::string& gold,
                                                       const ArmScores* reference);

}  // namespace inferscale::cli
