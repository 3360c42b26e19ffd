#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace inferscale {

/// Cuts text into pieces of at most `max_bytes`: behind the last end of a sentence where there is
/// one in the second half of a piece, else at the last white space, else between code points.
/// Pieces have no white space at their ends; nothing else is dropped. White space alone gives no
/// piece. REQUIRES: valid UTF-8, max_bytes >= 8.
[[nodiscard]] std::vector<std::string> split_text(std::string_view text, std::size_t max_bytes);

}  // namespace inferscale
