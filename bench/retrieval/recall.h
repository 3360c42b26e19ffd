#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "retrieval/locomo_questions.h"

namespace inferscale::bench {

/// How much of one question's evidence was found.
struct Found {
  std::size_t evidence = 0;
  std::size_t found = 0;
};

/// Over many questions.
struct Recall {
  double turns = 0;      ///< share of all evidence turns that a retrieved fact cites
  double questions = 0;  ///< share of questions whose evidence turns are all cited
};

struct Interval {
  double low = 0;
  double high = 0;
};

[[nodiscard]] Found count_found(const Question& question, const std::set<std::string>& cited_turns);
[[nodiscard]] Recall recall_of(const std::vector<Found>& found);

/// 95 % interval of metric(a) - metric(b) over the same questions, by 5,000 paired resamples of the
/// questions.
[[nodiscard]] Interval paired_interval(const std::vector<Found>& a, const std::vector<Found>& b,
                                       const std::function<double(const Recall&)>& metric);

}  // namespace inferscale::bench
