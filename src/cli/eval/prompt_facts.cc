#include "cli/eval/prompt_facts.h"

#include <algorithm>
#include <set>
#include <string>

#include "cli/eval/draw.h"

namespace inferscale::cli {

const char* fact_order_name(FactOrder order) {
  switch (order) {
    case FactOrder::kBestLast:
      return "best_last";
    case FactOrder::kBestFirst:
      return "best_first";
    case FactOrder::kShuffled:
      break;
  }
  return "shuffled";
}

std::vector<std::size_t> choose_facts(std::span<const std::size_t> ranked,
                                      const EvalQuestion& question, std::size_t k) {
  const std::set<std::size_t> evidence(question.evidence.begin(), question.evidence.end());
  std::size_t needed = 0;  // evidence that is still to come
  for (const std::size_t fact : ranked) {
    needed += evidence.contains(fact) ? 1 : 0;
  }
  std::vector<std::size_t> chosen;
  for (const std::size_t fact : ranked) {
    const bool is_evidence = evidence.contains(fact);
    if (chosen.size() + (is_evidence ? 0 : needed) < k) {
      chosen.push_back(fact);
      needed -= is_evidence ? 1 : 0;
    }
  }
  return chosen;
}

std::vector<std::size_t> order_facts(std::vector<std::size_t> best_first, FactOrder order,
                                     std::uint64_t seed) {
  if (order == FactOrder::kBestLast) {
    std::reverse(best_first.begin(), best_first.end());
  } else if (order == FactOrder::kShuffled) {
    SeededDraw(seed).shuffle(best_first);
  }
  return best_first;
}

std::map<std::string, double> evidence_recall(std::span<const std::size_t> ranked,
                                              const EvalQuestion& question) {
  std::map<std::string, double> recall;
  if (question.evidence.empty()) {
    return recall;
  }
  const std::set<std::size_t> evidence(question.evidence.begin(), question.evidence.end());
  for (const std::size_t k : {5, 10, 20, 50}) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < std::min(k, ranked.size()); ++i) {
      found += evidence.contains(ranked[i]) ? 1 : 0;
    }
    recall[std::to_string(k)] = static_cast<double>(found) / static_cast<double>(evidence.size());
  }
  return recall;
}

}  // namespace inferscale::cli
