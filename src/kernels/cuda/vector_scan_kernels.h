#pragma once

#include <cstdint>

#include "inferscale/kv_kernels.h"

namespace inferscale::cuda {

/// A score and an index as one number: greater is better. 0: no vector, or a score that is NaN.
using ScanKey = std::uint64_t;

/// Vectors of one block of the first pass: few while that gives every multiprocessor its share.
inline constexpr std::uint32_t kFewPerBlock = 64;
inline constexpr std::uint32_t kManyPerBlock = 256;
inline constexpr std::uint32_t kSortedPerBlock = 2048;  ///< keys of one block of a later pass

/// The first pass: every block scores up to `per_block` vectors of one query and keeps their best
/// `kept`, in order, zeros behind them. All pointers are the device's.
struct ScorePass {
  const std::byte* vectors = nullptr;           ///< [][row_elements]
  const float* queries = nullptr;               ///< [n_queries][row_elements], zeros behind dim
  const std::uint64_t* firsts = nullptr;        ///< [n_queries]: a scope's first vector
  const std::uint32_t* counts = nullptr;        ///< [n_queries]
  const std::uint32_t* first_blocks = nullptr;  ///< [n_queries + 1]: blocks before a query's
  ScanKey* out = nullptr;                       ///< [blocks][kept]
  std::uint32_t n_queries = 0;
  std::uint32_t row_elements = 0;          ///< a multiple of 16 bytes
  std::uint32_t per_block = kFewPerBlock;  ///< kFewPerBlock or kManyPerBlock
  std::uint32_t kept = 0;                  ///< at most per_block
  std::uint32_t n_blocks = 0;
};
[[nodiscard]] Status launch_scores(const ScorePass& pass, KvCodec dtype, void* stream);

/// A later pass: every block sorts up to kSortedPerBlock keys of one query and keeps the best.
struct SelectPass {
  const ScanKey* in = nullptr;
  ScanKey* out = nullptr;                       ///< [blocks][kept]
  const std::uint32_t* in_blocks = nullptr;     ///< [n_queries + 1]: blocks of the pass before
  const std::uint32_t* first_blocks = nullptr;  ///< [n_queries + 1]: blocks before a query's
  std::uint32_t n_queries = 0;
  std::uint32_t in_kept = 0;  ///< keys that each block of the pass before kept
  std::uint32_t kept = 0;
  std::uint32_t n_blocks = 0;
};
[[nodiscard]] Status launch_select(const SelectPass& pass, void* stream);

/// The hit that a key stands for. REQUIRES: key != 0.
[[nodiscard]] ScanHit hit_of(ScanKey key);

}  // namespace inferscale::cuda
