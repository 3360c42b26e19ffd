#include "engine/vllm/scoring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace inferscale::vllm {

Status check_scores(const RunRequest& request, std::uint32_t vocab_size) {
  const std::size_t plan = plan_tokens(request);
  for (const Branch& branch : request.branches) {
    for (const std::uint32_t position : branch.score_positions) {
      if (vocab_size == 0) {
        return unsupported("the vLLM server does not say how large its vocabulary is");
      }
      if (position < plan) {
        return unsupported(fmt::format(
            "score position {} is inside the plan; a vLLM server scores what follows it",
            position));
      }
    }
  }
  return Status();
}

bool scores_its_end(const Branch& branch, std::size_t length) {
  const std::vector<std::uint32_t>& places = branch.score_positions;
  return std::any_of(places.begin(), places.end(),
                     [length](std::uint32_t place) { return place + 1 == length; });
}

std::optional<RunRequest> score_probes(const RunRequest& request) {
  const std::size_t plan = plan_tokens(request);
  std::vector<Branch> branches;
  for (const Branch& branch : request.branches) {
    for (const std::uint32_t place : branch.score_positions) {
      const std::size_t length = place + 1 - plan;
      if (length < branch.tokens.size()) {
        const auto begin = branch.tokens.begin();
        branches.push_back({{begin, begin + static_cast<std::ptrdiff_t>(length)}, {}, {place}});
      }
    }
  }
  if (branches.empty()) {
    return std::nullopt;  // as of every run that answers: its plan is not copied
  }
  RunRequest probes = request;
  probes.branches = std::move(branches);
  probes.session.clear();
  probes.on_token = {};
  probes.sampling = Sampling{};
  return probes;
}

Result<std::vector<float>> spread_log_probs(std::span<const LikelyToken> likely,
                                            std::uint32_t vocab_size) {
  if (likely.empty()) {
    return unavailable("the vLLM server tells no probabilities of a token that is scored");
  }
  double told = 0;
  std::vector<bool> known(vocab_size);
  for (const LikelyToken& entry : likely) {
    const bool known_token =
        entry.token >= 0 && static_cast<std::uint32_t>(entry.token) < vocab_size;
    if (!known_token || !(entry.log_prob <= 1e-3F)) {
      return unavailable(
          fmt::format("the vLLM server tells a log-probability of {} of token {} of "
                      "{}",
                      entry.log_prob, entry.token, vocab_size));
    }
    const auto token = static_cast<std::size_t>(entry.token);
    told += known[token] ? 0 : std::exp(static_cast<double>(entry.log_prob));
    known[token] = true;
  }
  const auto others = static_cast<double>(
      std::max<std::ptrdiff_t>(1, std::count(known.begin(), known.end(), false)));
  constexpr double kLeast = 1e-12;  // of what rounding leaves of the probability
  std::vector<float> log_probs(vocab_size,
                               static_cast<float>(std::log(std::max(1.0 - told, kLeast) / others)));
  for (const LikelyToken& entry : likely) {
    log_probs[static_cast<std::size_t>(entry.token)] = entry.log_prob;
  }
  return log_probs;
}

Status note_scores(const RunRequest& request, std::span<const BranchOutcome> outcomes,
                   std::span<const BranchOutcome> probed, std::uint32_t vocab_size,
                   std::vector<BranchResult>& results) {
  std::size_t probe = 0;
  for (std::size_t i = 0; i < request.branches.size(); ++i) {
    const std::size_t length = plan_tokens(request) + request.branches[i].tokens.size();
    for (const std::uint32_t place : request.branches[i].score_positions) {
      const BranchOutcome& outcome = place + 1 == length ? outcomes[i] : probed[probe++];
      INFERSCALE_ASSIGN_OR_RETURN(std::vector<float> log_probs,
                                  spread_log_probs(outcome.likely, vocab_size));
      results.at(i).scores.push_back({place, std::move(log_probs)});
    }
  }
  return Status();
}

}  // namespace inferscale::vllm
