#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kv_compose.h"
#include "kernels/cuda/row_move.h"
#include "kernels/page_layout.h"

namespace inferscale::cuda {

/// Whether there is a device. Programs that ask say at their end how many cases they skipped.
bool has_device();

/// Skips what follows on a machine without a device.
#define INFERSCALE_NEEDS_DEVICE()                     \
  if (!::inferscale::cuda::has_device()) {            \
    GTEST_SKIP() << "no CUDA device on this machine"; \
  }                                                   \
  static_assert(true)

/// How an engine's cache lies in memory: ranges of vLLM's versions, and odd ones.
enum class CacheKind {
  kApart,        ///< (2, block, row, head, dim)
  kPaired,       ///< (block, 2, row, head, dim)
  kPackedRows,   ///< (block, row, head, [K|V])
  kPackedHeads,  ///< (block, head, row, [K|V])
  kNoBlocks,     ///< (row, head, dim)
  kPaddedRows,   ///< the same with 12 bytes between the rows
  kOddAddress,   ///< the same, one byte behind an even address
};
inline constexpr CacheKind kCacheKinds[] = {
    CacheKind::kApart,    CacheKind::kPaired,     CacheKind::kPackedRows, CacheKind::kPackedHeads,
    CacheKind::kNoBlocks, CacheKind::kPaddedRows, CacheKind::kOddAddress};

/// One cache as bytes: the same layout over any copy of them.
struct CacheImage {
  CacheImage(const KvShape& shape, KvCodec dtype, CacheKind kind, std::size_t n_rows);

  [[nodiscard]] CacheLayout at(std::byte* base) const;
  [[nodiscard]] ConstCacheLayout at(const std::byte* base) const;

  std::vector<std::byte> bytes;  ///< poisoned

 private:
  CacheLayout layout_;  // pointers are offsets
};

/// Shape, rotary dimensions and pairing of a model; or of none.
struct MoveCase {
  std::string name;
  KvShape shape;
  std::uint32_t rotary_dim = 0;
  RopePairing pairing = RopePairing::kHalves;
  bool biased = false;  ///< the model adds something to its keys
};
std::vector<MoveCase> move_cases();
RopeSpec rope_of(const MoveCase& c);
inline constexpr std::uint32_t kPositions = 16384;
/// With kernels::large_bias where the case has one.
std::shared_ptr<const RopeTable> table_of(const MoveCase& c);
/// What a move by the device's code on the host reads of a table.
void use_table(const RopeTable& table, RowMoves* moves);

/// Pages of a few records, in memory of the host or of the device, in no order.
class PagedRecords {
 public:
  /// Record i has tokens[i] tokens. `where`: pages lie in turn in each of these; empty: on the
  /// host.
  PagedRecords(const PageLayout& layout, const std::vector<std::uint32_t>& tokens,
               const std::vector<MemoryKind>& where);

  [[nodiscard]] const std::shared_ptr<const Record>& record(std::size_t i) const {
    return records_[i];
  }
  [[nodiscard]] const std::vector<const std::byte*>& pages(std::size_t i) const {
    return pages_[i];
  }

 private:
  std::vector<std::shared_ptr<const Record>> records_;
  std::vector<std::vector<const std::byte*>> pages_;
  std::vector<Buffer> buffers_;
  std::vector<std::byte> host_;
};

/// What is placed where: `first_token` and following of record `record`.
struct Placement {
  std::size_t record = 0;
  std::uint32_t first_token = 0;
  std::uint32_t first_position = 0;
  std::vector<std::uint32_t> rows;
};

/// Distinct rows below n_rows, in no order, for several placements: [i] of counts[i].
std::vector<std::vector<std::uint32_t>> scattered_rows(const std::vector<std::uint32_t>& counts,
                                                       std::size_t n_rows);

/// kv_compose over the image's bytes: what the device must give.
void compose_on_cpu(const PagedRecords& records, const std::vector<Placement>& placements,
                    const RopeTable& table, CacheImage* image);
std::vector<PagedItem> items_of(const PagedRecords& records,
                                const std::vector<Placement>& placements);

/// Which elements of K may differ by a rounding.
struct Turned {
  std::uint32_t rotary_dim = 0;
  RopePairing pairing = RopePairing::kHalves;
  double bias = 0;  ///< the largest that was taken from them after they were turned
};
inline Turned turned_of(const MoveCase& c) {
  return {c.rotary_dim, c.pairing, c.biased ? 200.0 : 0.0};
}

/// Equal in every byte, but for turned elements of K: those within one rounding and the error of
/// fp32 arithmetic.
::testing::AssertionResult same_cache(const CacheImage& want, const CacheImage& got,
                                      const Turned& turned);
/// The same of `count` heads of `dim` elements, one behind the other; of a scaled codec all
/// elements of a turned head within one step.
::testing::AssertionResult same_heads(KvCodec codec, std::size_t count, std::uint32_t dim,
                                      const Turned& turned, const std::byte* want,
                                      const std::byte* got);

/// A copy of the bytes in device memory, and back.
Buffer to_device(const std::vector<std::byte>& bytes);
void from_device(const Buffer& buffer, std::vector<std::byte>* bytes);

}  // namespace inferscale::cuda
