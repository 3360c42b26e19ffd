#include "cli/eval/metrics.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

#include "memory/divergence.h"

namespace inferscale::cli {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty() && word != "a" && word != "an" && word != "the") {
      words.push_back(word);
    }
    word.clear();
  };
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isspace(byte) != 0) {
      end_word();
    } else if (std::ispunct(byte) == 0) {
      word += static_cast<char>(std::tolower(byte));
    }
  }
  end_word();
  return words;
}

}  // namespace

std::size_t most_probable(std::span<const float> log_probs) {
  return static_cast<std::size_t>(
      std::distance(log_probs.begin(), std::max_element(log_probs.begin(), log_probs.end())));
}

PathComparison compare_paths(const LogProbs& reference, const LogProbs& arm) {
  PathComparison comparison;
  const auto places = static_cast<double>(reference.size());
  comparison.first_divergence = places;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double kl = kl_divergence(reference[i], arm[i]);
    comparison.kl_first = i == 0 ? kl : comparison.kl_first;
    comparison.kl_mean += kl / places;
    const bool same = most_probable(reference[i]) == most_probable(arm[i]);
    comparison.top1 += same ? 1 / places : 0;
    if (!same) {
      comparison.first_divergence = std::min(comparison.first_divergence, static_cast<double>(i));
    }
  }
  return comparison;
}

double mean_nll(const LogProbs& log_probs, std::span<const TokenId> path) {
  double sum = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    sum -= static_cast<double>(log_probs[i].at(static_cast<std::size_t>(path[i])));
  }
  return sum / static_cast<double>(path.size());
}

double word_f1(std::string_view predicted, std::string_view gold) {
  const std::vector<std::string> said = words_of(predicted);
  const std::vector<std::string> wanted = words_of(gold);
  if (said.empty() || wanted.empty()) {
    return said.empty() && wanted.empty() ? 1 : 0;
  }
  std::map<std::string, std::size_t> left;
  for (const std::string& word : wanted) {
    ++left[word];
  }
  std::size_t common = 0;
  for (const std::string& word : said) {
    const auto found = left.find(word);
    if (found != left.end() && found->second > 0) {
      --found->second;
      ++common;
    }
  }
  return 2.0 * static_cast<double>(common) / static_cast<double>(said.size() + wanted.size());
}

}  // namespace inferscale::cli
