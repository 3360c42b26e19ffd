#include "retrieval/text_chunks.h"

#include <cassert>

namespace inferscale {

std::vector<ChunkSpan> chunk_spans(std::size_t n_tokens, std::size_t window, std::size_t overlap) {
  assert(overlap < window);
  if (n_tokens == 0) {
    return {};
  }
  if (n_tokens <= window) {
    return {{0, n_tokens}};
  }
  const std::size_t step = window - overlap;
  const std::size_t count = (n_tokens - overlap + step - 1) / step;
  // Piece i covers its share of the tokens after the first overlap, and the overlap before it.
  std::vector<ChunkSpan> spans;
  spans.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = (n_tokens - overlap) * i / count;
    const std::size_t end = (n_tokens - overlap) * (i + 1) / count + overlap;
    spans.push_back({begin, end - begin});
  }
  return spans;
}

}  // namespace inferscale
