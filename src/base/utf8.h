#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "inferscale/status.h"

namespace inferscale {

/// Byte offset of the first malformed sequence (overlong forms, surrogates and values over U+10FFFF
/// included), or npos when `text` is valid UTF-8.
[[nodiscard]] std::size_t find_invalid_utf8(std::string_view text);

/// kInvalidArgument that names `field` when `text` is empty, longer than `max_bytes`, or not UTF-8
/// (with the offset).
[[nodiscard]] Status check_text(std::string_view field, std::string_view text,
                                std::size_t max_bytes);

/// Offset of the first control character or line separator (U+2028, U+2029), or npos. REQUIRES:
/// valid UTF-8.
[[nodiscard]] std::size_t find_line_breaker(std::string_view text);

/// Largest prefix of at most `max_bytes` that ends at a code point boundary. REQUIRES: valid UTF-8.
[[nodiscard]] std::string_view utf8_prefix(std::string_view text, std::size_t max_bytes);

/// Replaces every run of white space and control characters (CR, LF, TAB, U+0085, U+2028, U+2029
/// ... included) by one space and trims both ends, so that the text fits one line.
[[nodiscard]] std::string single_line(std::string_view text);

}  // namespace inferscale
