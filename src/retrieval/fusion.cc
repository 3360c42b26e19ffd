#include "retrieval/fusion.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace inferscale {

std::vector<FusedId> fuse_rankings(std::span<const RankedId> vector,
                                   std::span<const RankedId> keyword,
                                   const FusionWeights& weights) {
  std::unordered_map<std::string, FusedId> fused;
  const auto add = [&](std::span<const RankedId> ranking, double weight,
                       double FusedId::*own_score) {
    std::unordered_set<std::string> seen;
    for (const RankedId& entry : ranking) {
      if (!seen.insert(entry.fact_id).second) {
        continue;
      }
      FusedId& into = fused[entry.fact_id];
      into.fact_id = entry.fact_id;
      into.score += weight / (weights.k0 + static_cast<double>(seen.size()));
      into.*own_score = entry.score;
    }
  };
  add(vector, weights.vector, &FusedId::vector_score);
  add(keyword, weights.keyword, &FusedId::keyword_score);

  std::vector<FusedId> ranked;
  ranked.reserve(fused.size());
  for (auto& [id, entry] : fused) {
    ranked.push_back(std::move(entry));
  }
  std::sort(ranked.begin(), ranked.end(), [](const FusedId& a, const FusedId& b) {
    return a.score != b.score ? a.score > b.score : a.fact_id < b.fact_id;
  });
  return ranked;
}

}  // namespace inferscale
