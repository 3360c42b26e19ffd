#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/vllm/vllm_request.h"

/// Next-token distributions from a server that tells those of the likeliest tokens, one place for
/// each request.
namespace inferscale::vllm {

/// How many of the likeliest tokens are asked for. A server has to be started with
/// `--max-logprobs` of as many.
inline constexpr std::uint32_t kScoredTokens = 1024;

/// Errors: kUnsupported (a place inside the plan; a server that does not say how large its
/// vocabulary is), when anything is scored at all.
[[nodiscard]] Status check_scores(const RunRequest& request, std::uint32_t vocab_size);

/// Whether the last of the sequence's `length` tokens is scored.
[[nodiscard]] bool scores_its_end(const Branch& branch, std::size_t length);

/// The branches that end at the other places that `request` scores, in the order of its branches
/// and places; they generate and keep nothing. Nothing where there are none. REQUIRES: check_scores
/// is ok.
[[nodiscard]] std::optional<RunRequest> score_probes(const RunRequest& request);

/// log-probabilities of all tokens, [vocab_size]. What `likely` leaves of the probability is spread
/// evenly over the others. Errors: kUnavailable (no tokens, or one that is none).
[[nodiscard]] Result<std::vector<float>> spread_log_probs(std::span<const LikelyToken> likely,
                                                          std::uint32_t vocab_size);

/// Adds the scores to the branches' results. `outcomes` are those of `request`, `probed` those of
/// its probes.
[[nodiscard]] Status note_scores(const RunRequest& request, std::span<const BranchOutcome> outcomes,
                                 std::span<const BranchOutcome> probed, std::uint32_t vocab_size,
                                 std::vector<BranchResult>& results);

}  // namespace inferscale::vllm
