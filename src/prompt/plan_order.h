#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace inferscale {

/// A retrieved fact as ordering sees it; index 0 of the list is the best.
struct PlanCandidate {
  std::uint32_t n_tokens = 0;
  bool has_kv = false;
};

/// Which candidates stand in the prompt, in prompt order (architecture §3): first those injected,
/// by rank, best last; then, as text, those without KV and the `top_j` best, by rank, best last.
struct PlanOrder {
  std::vector<std::size_t> injected;  ///< indices into the candidates
  std::vector<std::size_t> as_text;
  std::size_t dropped = 0;  ///< lowest-ranked candidates that did not fit
};

/// Keeps the best candidates whose tokens fit `budget_tokens` together: the first that does not fit
/// and everything ranked below it are dropped, so that a lower-ranked fact never displaces a better
/// one.
[[nodiscard]] PlanOrder order_plan(std::span<const PlanCandidate> candidates, std::size_t top_j,
                                   std::size_t budget_tokens);

}  // namespace inferscale
