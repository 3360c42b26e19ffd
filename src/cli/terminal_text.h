#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace inferscale::cli {

/// `text` with control characters other than new lines and tabs, and bytes that are no UTF-8,
/// replaced by U+FFFD: what users store must not drive the terminal that shows it.
[[nodiscard]] std::string printable(std::string_view text);

/// Columns that `text` takes on a terminal. REQUIRES: valid UTF-8.
[[nodiscard]] std::size_t display_width(std::string_view text);

/// Lines of at most `width` columns, broken between words where possible.
[[nodiscard]] std::vector<std::string> wrap_text(std::string_view text, std::size_t width);

/// `text` on one line of at most `width` columns, ending in "…" when it was longer.
[[nodiscard]] std::string shorten(std::string_view text, std::size_t width);

}  // namespace inferscale::cli
