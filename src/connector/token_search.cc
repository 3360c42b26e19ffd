#include "connector/token_search.h"

#include <vector>

namespace inferscale {
namespace {

/// Knuth, Morris and Pratt's table: of each prefix, how long its longest border is. The library's
/// searchers are quadratic on repeated tokens, which a client may send.
std::vector<std::size_t> borders(std::span<const TokenId> tokens) {
  std::vector<std::size_t> border(tokens.size(), 0);
  for (std::size_t i = 1, length = 0; i < tokens.size(); ++i) {
    while (length > 0 && tokens[i] != tokens[length]) {
      length = border[length - 1];
    }
    length += tokens[i] == tokens[length] ? 1 : 0;
    border[i] = length;
  }
  return border;
}

}  // namespace

TokenRun find_longest_run(std::span<const TokenId> prompt,
                          std::span<const std::span<const TokenId>> parts) {
  std::vector<TokenId> pattern;
  std::vector<std::size_t> complete = {0};  // parts within the first n tokens of the pattern
  for (const std::span<const TokenId> part : parts) {
    if (part.empty() || pattern.size() + part.size() > prompt.size()) {
      break;  // no longer run fits
    }
    pattern.insert(pattern.end(), part.begin(), part.end());
    complete.resize(pattern.size() + 1, complete.back());
    ++complete.back();
  }
  TokenRun best;
  const std::vector<std::size_t> border = borders(pattern);
  // `length` is that of the longest prefix of the pattern that ends at i: no run that ends there
  // has more parts, and one that is continued is seen again at its later end.
  for (std::size_t i = 0, length = 0; i < prompt.size() && !pattern.empty(); ++i) {
    while (length == pattern.size() || (length > 0 && prompt[i] != pattern[length])) {
      length = border[length - 1];
    }
    length += prompt[i] == pattern[length] ? 1 : 0;
    if (complete[length] > best.parts) {
      best = {i + 1 - length, complete[length]};
    }
  }
  return best;
}

}  // namespace inferscale
