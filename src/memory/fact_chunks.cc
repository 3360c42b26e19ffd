#include "memory/fact_chunks.h"

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

// Where to cut a part that must not exceed `limit` bytes: after the last sentence end or white
// space of its second half.
std::size_t cut_position(std::string_view part) {
  const std::size_t half = part.size() / 2;
  for (std::size_t i = part.size() - 1; i > half; --i) {
    const bool ends_sentence = part[i - 1] == '.' || part[i - 1] == '!' || part[i - 1] == '?';
    if (ends_sentence && kSpaces.find(part[i]) != std::string_view::npos) {
      return i;
    }
  }
  const std::size_t space = part.find_last_of(kSpaces);
  return space != std::string_view::npos && space > half ? space : part.size();
}

}  // namespace

std::vector<std::string> chunk_fact_text(std::string_view text, std::size_t max_bytes) {
  std::vector<std::string> parts;
  std::string_view rest = trim(text);
  while (rest.size() > max_bytes) {
    const std::string_view part = utf8_prefix(rest, max_bytes);
    const std::size_t cut = cut_position(part);
    parts.emplace_back(trim(rest.substr(0, cut)));
    rest = trim(rest.substr(cut));
  }
  if (!rest.empty()) {
    parts.emplace_back(rest);
  }
  return parts;
}

}  // namespace inferscale
