#include "prompt/plan_order.h"

namespace inferscale {

PlanOrder order_plan(std::span<const PlanCandidate> candidates, std::size_t top_j,
                     std::size_t budget_tokens) {
  std::size_t kept = 0;
  std::size_t used = 0;
  while (kept < candidates.size() && candidates[kept].n_tokens <= budget_tokens - used) {
    used += candidates[kept].n_tokens;
    ++kept;
  }
  PlanOrder order;
  order.dropped = candidates.size() - kept;
  for (std::size_t i = kept; i-- > 0;) {
    const bool injected = candidates[i].has_kv && i >= top_j;
    (injected ? order.injected : order.as_text).push_back(i);
  }
  return order;
}

}  // namespace inferscale
