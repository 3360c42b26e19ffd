#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "unit/kernels/reference.h"

namespace inferscale::kernels {

/// How rows and heads lie in an engine's memory.
enum class Arrangement {
  kPacked,       ///< [row][head][dim]
  kPaddedRows,   ///< bytes between rows
  kPaddedHeads,  ///< bytes between heads, too
  kHeadMajor,    ///< [head][row][dim]
  kOddBase,      ///< packed, at an odd address
};
inline constexpr Arrangement kArrangements[] = {Arrangement::kPacked, Arrangement::kPaddedRows,
                                                Arrangement::kPaddedHeads, Arrangement::kHeadMajor,
                                                Arrangement::kOddBase};
std::string describe(Arrangement arrangement);

/// An engine's cache with random content; every layer ends where its allocation ends.
class TestCache {
 public:
  TestCache(const KvShape& shape, KvCodec dtype, std::size_t n_rows,
            Arrangement arrangement = Arrangement::kPacked);

  [[nodiscard]] CacheLayout layout();
  [[nodiscard]] ConstCacheLayout const_layout() const;
  [[nodiscard]] Head k(std::uint32_t layer, std::size_t row, std::uint32_t head) const;
  [[nodiscard]] Head v(std::uint32_t layer, std::size_t row, std::uint32_t head) const;

  /// Does every byte outside the cells of `rows` still have its first content?
  [[nodiscard]] bool intact_except(std::span<const std::uint32_t> rows) const;

 private:
  struct Grid {
    std::size_t head_bytes = 0;
    std::size_t row_stride = 0;
    std::size_t head_stride = 0;
    std::size_t front = 0;  // bytes before the first cell
    std::vector<std::vector<std::byte>> layers;
    std::vector<std::vector<std::byte>> before;
  };

  void build(Grid* grid, std::uint32_t head_dim, Arrangement arrangement, std::uint64_t seed);
  [[nodiscard]] bool intact(const Grid& grid, std::span<const std::uint32_t> rows) const;

  KvShape shape_;
  KvCodec dtype_;
  std::size_t n_rows_;
  Grid k_;
  Grid v_;
};

}  // namespace inferscale::kernels
