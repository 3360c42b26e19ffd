#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inferscale/export.h"
#include "inferscale/kv_record.h"
#include "inferscale/model_spec.h"
#include "inferscale/status.h"

namespace inferscale {

/// How many bytes lie between the starts of two neighbours, of keys or of values.
struct CacheStrides {
  std::size_t row = 0;
  std::size_t head = 0;
  std::size_t element = 0;  ///< of one head; 0: they are contiguous
  std::size_t block = 0;    ///< of rows; means nothing without blocks
};

/// Where an engine keeps (or will receive) the rows of each layer. Row r of layer l is at
/// k[l] + r * row or, in blocks of rows_per_block rows, at
/// k[l] + (r / rows_per_block) * block + (r % rows_per_block) * row; element i of its head h at
/// + h * head + i * element. The same for v. Strides may be in any order of size as long as no two
/// elements overlap. A view: owns nothing.
template <typename Byte>
struct BasicCacheLayout {
  KvCodec dtype = KvCodec::kF16;  ///< none with scales
  KvShape shape;
  std::vector<Byte*> k;  ///< [n_layers]
  std::vector<Byte*> v;  ///< [n_layers]
  CacheStrides k_strides = {};
  CacheStrides v_strides = {};
  std::size_t rows_per_block = 0;  ///< 0: no blocks
  std::size_t n_rows = 0;          ///< rows that exist behind each pointer; whole blocks
};
using CacheLayout = BasicCacheLayout<std::byte>;
using ConstCacheLayout = BasicCacheLayout<const std::byte>;

/// A record, or n_tokens of its tokens from first_token on, and where they go: the t-th of them
/// stands at position first_position + t, in row rows[t] (or first_row + t when `rows` is empty).
struct ComposeItem {
  const Record* record = nullptr;  ///< borrowed for the call
  std::uint32_t first_position = 0;
  std::size_t first_row = 0;
  std::span<const std::uint32_t> rows = {};  ///< one of each token, or empty
  std::uint32_t first_token = 0;
  std::uint32_t n_tokens = 0;  ///< 0: up to the record's last
};

/// Layers first .. first + count - 1 of a model: what one of several threads moves.
struct LayerRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;  ///< 0: up to the last
};

/// Gathers records, rotates their keys to the target positions (fp32 arithmetic, one rounding to
/// the cache's dtype) and scatters keys and values into `cache`. Values and unrotated elements are
/// copied bit for bit when codec and dtype are equal. Elements of a scaled codec are multiplied
/// with their scale first, which is exact in fp32. Thread-safe for disjoint rows, and for disjoint
/// layers. Errors: kInvalidArgument (layout, shape, rotary_dim; token, position, row or layer out
/// of range; mixed shapes): checked for all items before a byte is written.
[[nodiscard]] INFERSCALE_API Status kv_compose(std::span<const ComposeItem> items,
                                               const RopeTable& table, const CacheLayout& cache,
                                               LayerRange layers = {});

/// Tokens first_position .. +n-1 of a sequence, in rows rows[t] (or first_row + t) of the cache.
struct CaptureSource {
  std::uint32_t first_position = 0;
  std::size_t first_row = 0;
  std::span<const std::uint32_t> rows;
};

/// Reads the rows of `builder.n_tokens()` tokens, un-rotates the keys (x = (x'c + y's)/(c²+s²),
/// fp32, one rounding) and writes them to the builder's layers; to a scaled codec head by head,
/// each under a scale of its own (docs/format.md). Thread-safe for disjoint layers. Errors: as of
/// kv_compose; kInvalidArgument that names a head which a scaled codec cannot hold (infinite, NaN,
/// 2^127 and above): the builder must not be sealed; kInvalidArgument (a builder of kQ4, whose
/// records are transcoded from others).
[[nodiscard]] INFERSCALE_API Status kv_capture(const ConstCacheLayout& cache,
                                               const CaptureSource& source, const RopeTable& table,
                                               RecordBuilder& builder, LayerRange layers = {});

/// One hit of a vector scan.
struct ScanHit {
  std::uint32_t index = 0;
  float score = 0;  ///< inner product
};

/// Exact top-k by inner product: vectors [count][dim] row-major, query [dim]. Hits come best first;
/// equal scores by lower index; NaN scores are never returned. Returns min(k, count) hits.
/// Thread-safe.
[[nodiscard]] INFERSCALE_API std::vector<ScanHit> vector_scan(std::span<const float> vectors,
                                                              std::size_t dim,
                                                              std::span<const float> query,
                                                              std::size_t k);

}  // namespace inferscale
