#include "base/split_text.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

bool is_space(char c) { return kSpaces.find(c) != std::string_view::npos; }

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

/// One past the last sentence that ends within `window`, or 0. Full-width stops need no space
/// behind them.
std::size_t last_sentence_end(std::string_view window) {
  static constexpr std::array<std::string_view, 3> kWideStops = {"。", "！", "？"};
  std::size_t end = 0;
  for (const std::string_view stop : kWideStops) {
    if (const std::size_t at = window.rfind(stop); at != std::string_view::npos) {
      end = std::max(end, at + stop.size());
    }
  }
  for (std::size_t i = window.size() - 1; i > end; --i) {
    const char before = window[i - 1];
    if (is_space(window[i]) && (before == '.' || before == '!' || before == '?')) {
      return i;
    }
  }
  return end;
}

/// Length of the first piece of a text that is longer than `max_bytes`.
std::size_t piece_length(std::string_view text, std::size_t max_bytes) {
  const std::string_view window = utf8_prefix(text, max_bytes);
  const std::size_t sentence = last_sentence_end(window);
  if (sentence > max_bytes / 2) {
    return sentence;
  }
  if (is_space(text[window.size()])) {
    return window.size();
  }
  const std::size_t space = window.find_last_of(kSpaces);
  return space == std::string_view::npos || space == 0 ? window.size() : space;
}

}  // namespace

std::vector<std::string> split_text(std::string_view text, std::size_t max_bytes) {
  std::vector<std::string> pieces;
  std::string_view rest = trim(text);
  while (rest.size() > max_bytes) {
    const std::size_t length = piece_length(rest, max_bytes);
    pieces.emplace_back(trim(rest.substr(0, length)));
    rest = trim(rest.substr(length));
  }
  if (!rest.empty()) {
    pieces.emplace_back(rest);
  }
  return pieces;
}

}  // namespace inferscale
