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
  kPacked,           ///< [row][head][dim]
  kPaddedRows,       ///< bytes between rows
  kPaddedHeads,      ///< bytes between heads, too
  kHeadMajor,        ///< [head][row][dim]
  kOddBase,          ///< packed, at an odd address
  kBlocks,           ///< [block][row][head][dim], bytes between blocks
  kHeadMajorBlocks,  ///< [block][head][row][dim]
  kPairedBlocks,     ///< [block][head][row][2 dim]: room for the other of K and V behind each head
};
inline constexpr Arrangement kArrangements[] = {
    Arrangement::kPacked,          Arrangement::kPaddedRows,  Arrangement::kPaddedHeads,
    Arrangement::kHeadMajor,       Arrangement::kOddBase,     Arrangement::kBlocks,
    Arrangement::kHeadMajorBlocks, Arrangement::kPairedBlocks};
std::string describe(Arrangement arrangement);

/// An engine's cache with random content; every layer ends where its allocation ends.
class TestCache {
 public:
  /// `block`: rows of each, where the arrangement has blocks. REQUIRES: it divides n_rows.
  TestCache(const KvShape& shape, KvCodec dtype, std::size_t n_rows,
            Arrangement arrangement = Arrangement::kPacked, std::size_t block = 4);

  [[nodiscard]] CacheLayout layout();
  [[nodiscard]] ConstCacheLayout const_layout() const;
  [[nodiscard]] Head k(std::uint32_t layer, std::size_t row, std::uint32_t head) const;
  [[nodiscard]] Head v(std::uint32_t layer, std::size_t row, std::uint32_t head) const;

  /// Does every byte outside the cells of `rows` still have its first content?
  [[nodiscard]] bool intact_except(std::span<const std::uint32_t> rows) const;

 private:
  struct Grid {
    std::uint32_t head_dim = 0;
    CacheStrides strides;
    std::size_t front = 0;  // bytes before the first cell
    std::vector<std::vector<std::byte>> layers;
    std::vector<std::vector<std::byte>> before;
  };

  void arrange(Grid* grid, Arrangement arrangement) const;
  void fill(Grid* grid, std::uint64_t seed) const;
  [[nodiscard]] std::size_t cell(const Grid& grid, std::size_t row, std::size_t head) const;
  [[nodiscard]] Head head(const Grid& grid, std::uint32_t layer, std::size_t row,
                          std::size_t head) const;
  [[nodiscard]] bool intact(const Grid& grid, std::span<const std::uint32_t> rows) const;
  template <typename Layout>
  void describe_to(Layout* layout) const;

  KvShape shape_;
  KvCodec dtype_;
  std::size_t n_rows_;
  std::size_t block_;  // 0: no blocks
  Grid k_;
  Grid v_;
};

}  // namespace inferscale::kernels
