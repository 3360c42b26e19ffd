#include "cli/terminal_text.h"

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"

namespace inferscale::cli {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Character {
  std::uint32_t value;
  std::size_t length;
};

/// The character that valid UTF-8 begins with.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  std::uint32_t value = length == 1 ? lead : lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    value = value << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  return {value, length};
}

bool is_control(std::uint32_t c) {
  const bool bidirectional = (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
  return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0) || bidirectional;
}

/// 2 for what East Asian fonts and emoji draw wide, 0 for combining marks, else 1.
std::size_t columns_of(std::uint32_t c) {
  const bool combining =
      (c >= 0x300 && c <= 0x36F) || c == 0x200B || c == 0x200D || (c >= 0xFE00 && c <= 0xFE0F);
  if (combining) {
    return 0;
  }
  const bool wide = (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) ||
                    (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xF900 && c <= 0xFAFF) ||
                    (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF60) ||
                    (c >= 0x1F300 && c <= 0x1FAFF) || (c >= 0x20000 && c <= 0x3FFFD);
  return wide ? 2 : 1;
}

/// Bytes of the longest prefix of at most `width` columns.
std::size_t prefix_of_width(std::string_view text, std::size_t width) {
  std::size_t at = 0;
  std::size_t used = 0;
  while (at < text.size()) {
    const Character c = first_character(text.substr(at));
    if (used + columns_of(c.value) > width) {
      break;
    }
    used += columns_of(c.value);
    at += c.length;
  }
  return at;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t good = std::min(find_invalid_utf8(text), text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (at == good) {
      out += kReplacement;
      ++at;
      good = at + std::min(find_invalid_utf8(text.substr(at)), text.size() - at);
      continue;
    }
    const Character c = first_character(text.substr(at));
    out += is_control(c.value) ? kReplacement : text.substr(at, c.length);
    at += c.length;
  }
  return out;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Character c = first_character(text);
    width += columns_of(c.value);
    text.remove_prefix(c.length);
  }
  return width;
}

std::vector<std::string> wrap_text(std::string_view text, std::size_t width) {
  const std::string clean = single_line(printable(text));
  std::string_view rest = clean;
  std::vector<std::string> lines;
  while (!rest.empty()) {
    std::size_t length = prefix_of_width(rest, std::max<std::size_t>(width, 2));
    if (length < rest.size() && rest[length] != ' ') {
      const std::size_t space = rest.substr(0, length).rfind(' ');
      length = space == std::string_view::npos || space == 0 ? length : space;
    }
    lines.emplace_back(rest.substr(0, length));
    rest.remove_prefix(length);
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  }
  if (lines.empty()) {
    lines.emplace_back();
  }
  return lines;
}

std::string shorten(std::string_view text, std::size_t width) {
  const std::string clean = single_line(printable(text));
  if (display_width(clean) <= width) {
    return clean;
  }
  return clean.substr(0, prefix_of_width(clean, width - 1)) + "…";
}

}  // namespace inferscale::cli
