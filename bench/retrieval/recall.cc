#include "retrieval/recall.h"

#include <algorithm>
#include <random>

namespace inferscale::bench {

Found count_found(const Question& question, const std::set<std::string>& cited_turns) {
  Found result{question.evidence.size(), 0};
  for (const std::string& turn : question.evidence) {
    result.found += cited_turns.count(turn);
  }
  return result;
}

Recall recall_of(const std::vector<Found>& found) {
  std::size_t evidence = 0;
  std::size_t hits = 0;
  std::size_t complete = 0;
  for (const Found& question : found) {
    evidence += question.evidence;
    hits += question.found;
    complete += question.found == question.evidence ? 1 : 0;
  }
  const auto share = [](std::size_t part, std::size_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  return {share(hits, evidence), share(complete, found.size())};
}

Interval paired_interval(const std::vector<Found>& a, const std::vector<Found>& b,
                         const std::function<double(const Recall&)>& metric) {
  constexpr std::size_t kResamples = 5000;
  std::mt19937 random(20250101);
  std::uniform_int_distribution<std::size_t> pick(0, a.size() - 1);
  std::vector<double> differences;
  std::vector<Found> sample_a(a.size());
  std::vector<Found> sample_b(a.size());
  for (std::size_t resample = 0; resample < kResamples; ++resample) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::size_t question = pick(random);
      sample_a[i] = a[question];
      sample_b[i] = b[question];
    }
    differences.push_back(metric(recall_of(sample_a)) - metric(recall_of(sample_b)));
  }
  std::sort(differences.begin(), differences.end());
  return {differences[kResamples / 40], differences[kResamples - 1 - kResamples / 40]};
}

}  // namespace inferscale::bench
