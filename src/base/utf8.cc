#include "base/utf8.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace inferscale {
namespace {

/// A decoded code point and its length in bytes; length 0 when malformed.
struct CodePoint {
  std::uint32_t value = 0;
  std::size_t length = 0;
};

std::size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

CodePoint decode(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = sequence_length(lead);
  if (length == 1) {
    return {lead, 1};
  }
  if (length == 0 || text.size() - at < length) {
    return {};
  }
  std::uint32_t value = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if ((next & 0xC0) != 0x80) {
      return {};
    }
    value = value << 6 | (next & 0x3F);
  }
  static constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kSmallest[length] || value > 0x10FFFF || surrogate) {
    return {};
  }
  return {value, length};
}

bool is_space_or_control(std::uint32_t c) {
  return c <= 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    if (text.size() - at >= sizeof(word)) {  // eight ASCII bytes at once: most text is mostly that
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080ULL) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const CodePoint point = decode(text, at);
    if (point.length == 0) {
      return at;
    }
    at += point.length;
  }
  return std::string_view::npos;
}

Status check_text(std::string_view field, std::string_view text, std::size_t max_bytes) {
  if (text.empty()) {
    return invalid_argument(fmt::format("{} must not be empty", field));
  }
  if (text.size() > max_bytes) {
    return invalid_argument(
        fmt::format("{} must be at most {} bytes long, not {}", field, max_bytes, text.size()));
  }
  const std::size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    return invalid_argument(fmt::format("{} must be UTF-8; byte {} is not", field, invalid));
  }
  return Status();
}

std::size_t find_line_breaker(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 = c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    const bool separator = text.substr(i, 3) == "\u2028" || text.substr(i, 3) == "\u2029";
    if (c < 0x20 || c == 0x7F || c1 || (c == 0xE2 && separator)) {
      return i;
    }
  }
  return std::string_view::npos;
}

std::string_view utf8_prefix(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) {
    return text;
  }
  std::size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  return text.substr(0, end);
}

std::string single_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  bool gap = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode(text, at);
    const std::size_t length = point.length == 0 ? 1 : point.length;
    if (point.length != 0 && is_space_or_control(point.value)) {
      gap = true;
    } else {
      if (gap && !line.empty()) {
        line.push_back(' ');
      }
      gap = false;
      line.append(text.substr(at, length));
    }
    at += length;
  }
  return line;
}

}  // namespace inferscale
