#include "connector/token_search.h"

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

std::vector<std::size_t> find_tokens(std::span<const TokenId> prompt,
                                     std::span<const TokenId> tokens, std::size_t most) {
  std::vector<std::size_t> places;
  if (tokens.empty() || tokens.size() > prompt.size()) {
    return places;
  }
  const std::vector<std::size_t> border = borders(tokens);
  for (std::size_t i = 0, length = 0; i < prompt.size() && places.size() < most; ++i) {
    while (length > 0 && prompt[i] != tokens[length]) {
      length = border[length - 1];
    }
    length += prompt[i] == tokens[length] ? 1 : 0;
    if (length == tokens.size()) {
      places.push_back(i + 1 - length);
      length = border[length - 1];
    }
  }
  return places;
}

}  // namespace inferscale
