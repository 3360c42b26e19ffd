#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "inferscale/types.h"

namespace inferscale::cli {

/// Next-token log-probabilities in nats at consecutive places of a path, [positions][vocabulary].
using LogProbs = std::vector<std::vector<float>>;

/// Index of the most probable token, the lowest of equals. REQUIRES: not empty.
[[nodiscard]] std::size_t most_probable(std::span<const float> log_probs);

/// Two arms' predictions along the same tokens.
struct PathComparison {
  double kl_first = 0;  ///< KL(reference || arm) at the first place
  double kl_mean = 0;
  double top1 = 0;              ///< share of places where both favour the same token
  double first_divergence = 0;  ///< places before the first where they do not; all if there is none
};
/// REQUIRES: equally many places, at least one.
[[nodiscard]] PathComparison compare_paths(const LogProbs& reference, const LogProbs& arm);

/// Mean negative log-probability of `path`'s tokens, each predicted at its place. REQUIRES: one
/// place for each token, at least one.
[[nodiscard]] double mean_nll(const LogProbs& log_probs, std::span<const TokenId> path);

/// F1 over the words of both answers, lower case, without punctuation and articles (SQuAD's
/// measure, Rajpurkar et al. 2016). Two answers without words agree.
[[nodiscard]] double word_f1(std::string_view predicted, std::string_view gold);

}  // namespace inferscale::cli
