#include "kernels/cache_tile.h"

#include <algorithm>

namespace inferscale::kernels {
namespace {

constexpr std::size_t kLineBytes = 64;

}  // namespace

void CacheTile::append(const CacheRows& where, std::size_t first, std::size_t n_tokens) {
  for (std::size_t t = first; t < first + n_tokens; ++t) {
    const std::size_t row = where.row(t);
    offsets_.push_back(rows_per_block_ == 0 ? row * strides_.row
                                            : row / rows_per_block_ * strides_.block +
                                                  row % rows_per_block_ * strides_.row);
  }
}

bool CacheTile::follow(std::size_t slot, std::size_t n_tokens) const {
  for (std::size_t t = slot + 1; t < slot + n_tokens; ++t) {
    if (offsets_[t] != offsets_[t - 1] + strides_.row) {
      return false;
    }
  }
  return true;
}

std::size_t tile_tokens(const CacheRows& where, std::size_t first, std::size_t n_tokens,
                        std::size_t limit, std::size_t element_bytes) {
  const std::size_t n = std::min(n_tokens - first, limit);
  const std::size_t line = kLineBytes / element_bytes;
  const std::size_t beyond = (where.row(first + n - 1) + 1) % line;
  return n == n_tokens - first || beyond >= n ? n : n - beyond;
}

}  // namespace inferscale::kernels
