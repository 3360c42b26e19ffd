#pragma once

#include <span>
#include <string>
#include <vector>

namespace inferscale {

/// One entry of a ranking, best first.
struct RankedId {
  std::string fact_id;
  double score = 0;
};

/// Weighted reciprocal rank fusion: score(f) = sum over rankings that hold f of weight / (k0 +
/// rank), ranks from 1. Chosen by measurement, docs/retrieval.md.
struct FusionWeights {
  double k0 = 5;
  double vector = 1;
  double keyword = 0.6;
};

struct FusedId {
  std::string fact_id;
  double score = 0;
  double vector_score = 0;   ///< 0 when only keywords found it
  double keyword_score = 0;  ///< 0 when only the vector found it
};

/// The union of both rankings, best first; equal scores by id, so that the order is the same every
/// time. An id that comes twice in one ranking counts once, at its first rank.
[[nodiscard]] std::vector<FusedId> fuse_rankings(std::span<const RankedId> vector,
                                                 std::span<const RankedId> keyword,
                                                 const FusionWeights& weights);

}  // namespace inferscale
