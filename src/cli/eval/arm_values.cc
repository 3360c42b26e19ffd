#include "cli/eval/arm_values.h"

#include <algorithm>
#include <cmath>

namespace inferscale::cli {
namespace {

using Values = std::map<std::string, double>;

void put(Values& values, const char* name, double value) {
  if (std::isfinite(value)) {
    values[name] = value;
  }
}

void compare(Values& values, const ArmScores& scores, const ArmScores& reference) {
  const PathComparison gold = compare_paths(reference.gold, scores.gold);
  put(values, "kl_first", gold.kl_first);
  put(values, "kl_gold", gold.kl_mean);
  put(values, "top1_gold", gold.top1);
  if (!reference.reference.empty()) {
    const PathComparison path = compare_paths(reference.reference, scores.reference);
    put(values, "kl_reference", path.kl_mean);
    put(values, "top1_reference", path.top1);
    put(values, "first_divergence", path.first_divergence);
  }
}

}  // namespace

Values arm_values(const ArmScores& scores, const std::string& gold, const ArmScores* reference) {
  Values values;
  put(values, "nll_gold", scores.gold_nll);
  put(values, "f1", word_f1(scores.answer_text, gold));
  if (!scores.distractor_nll.empty()) {
    const double nearest =
        *std::min_element(scores.distractor_nll.begin(), scores.distractor_nll.end());
    put(values, "margin", nearest - scores.gold_nll);
    put(values, "rank1", scores.gold_nll < nearest ? 1 : 0);
  }
  put(values, "prompt_tokens", scores.prompt_tokens);
  put(values, "injected", scores.injected);
  put(values, "prefilled", scores.prefilled);
  put(values, "ttft_ms", scores.ttft_ms);
  if (reference != nullptr) {
    compare(values, scores, *reference);
  }
  return values;
}

}  // namespace inferscale::cli
