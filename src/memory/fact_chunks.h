#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace inferscale {

/// A fact is a statement, not a document: longer text becomes several facts.
inline constexpr std::size_t kMaxFactChunkBytes = 2000;

/// Splits `text` (valid UTF-8) into parts of at most `max_bytes`, at the end of a sentence where
/// there is one in the second half of a part, else at white space, else between code points.
/// Nothing is dropped but white space at the cuts.
[[nodiscard]] std::vector<std::string> chunk_fact_text(std::string_view text,
                                                       std::size_t max_bytes = kMaxFactChunkBytes);

}  // namespace inferscale
