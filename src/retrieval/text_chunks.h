#pragma once

#include <cstddef>
#include <vector>

namespace inferscale {

struct ChunkSpan {
  std::size_t begin = 0;  ///< first token
  std::size_t size = 0;
};

/// Cuts a text of `n_tokens` tokens into pieces of at most `window`, each beginning `overlap`
/// tokens before the end of the one before it, so that together they hold every token. As few as
/// possible, of equal size but for rounding: a short rest would be a vector of half a sentence. No
/// tokens, no chunks. REQUIRES: overlap < window.
[[nodiscard]] std::vector<ChunkSpan> chunk_spans(std::size_t n_tokens, std::size_t window,
                                                 std::size_t overlap);

}  // namespace inferscale
