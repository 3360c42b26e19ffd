#include "unit/kernels/test_cache.h"

#include <algorithm>

namespace inferscale::kernels {
namespace {

constexpr std::size_t kGap = 12;

std::size_t cell(std::size_t front, std::size_t row, std::size_t row_stride, std::size_t head,
                 std::size_t head_stride) {
  return front + row * row_stride + head * head_stride;
}

}  // namespace

std::string describe(Arrangement arrangement) {
  switch (arrangement) {
    case Arrangement::kPacked:
      return "packed";
    case Arrangement::kPaddedRows:
      return "padded rows";
    case Arrangement::kPaddedHeads:
      return "padded heads";
    case Arrangement::kHeadMajor:
      return "head-major";
    case Arrangement::kOddBase:
      return "odd base";
  }
  return "?";
}

TestCache::TestCache(const KvShape& shape, KvCodec dtype, std::size_t n_rows,
                     Arrangement arrangement)
    : shape_(shape), dtype_(dtype), n_rows_(n_rows) {
  build(&k_, shape.head_dim_k, arrangement, 1000);
  build(&v_, shape.head_dim_v, arrangement, 2000);
}

void TestCache::build(Grid* grid, std::uint32_t head_dim, Arrangement arrangement,
                      std::uint64_t seed) {
  const std::size_t heads = shape_.n_kv_heads;
  grid->head_bytes = head_dim * codec_element_bytes(dtype_);
  const bool padded_heads = arrangement == Arrangement::kPaddedHeads;
  const bool padded_rows = padded_heads || arrangement == Arrangement::kPaddedRows;
  grid->front = arrangement == Arrangement::kOddBase ? 1 : 0;
  if (arrangement == Arrangement::kHeadMajor) {
    grid->row_stride = grid->head_bytes;
    grid->head_stride = n_rows_ * grid->head_bytes;
  } else {
    grid->head_stride = grid->head_bytes + (padded_heads ? kGap : 0);
    grid->row_stride = heads * grid->head_stride + (padded_rows ? kGap : 0);
  }
  const std::size_t size =
      cell(grid->front, n_rows_ - 1, grid->row_stride, heads - 1, grid->head_stride) +
      grid->head_bytes;
  for (std::uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    std::vector<std::byte> bytes(size, std::byte{0xA5});
    for (std::size_t row = 0; row < n_rows_; ++row) {
      for (std::size_t head = 0; head < heads; ++head) {
        const std::size_t at = cell(grid->front, row, grid->row_stride, head, grid->head_stride);
        fill_random(dtype_, bytes.data() + at, head_dim,
                    seed + (layer * n_rows_ + row) * heads + head);
      }
    }
    grid->before.push_back(bytes);
    grid->layers.push_back(std::move(bytes));
  }
}

CacheLayout TestCache::layout() {
  CacheLayout layout;
  layout.dtype = dtype_;
  layout.shape = shape_;
  for (std::uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    layout.k.push_back(k_.layers[layer].data() + k_.front);
    layout.v.push_back(v_.layers[layer].data() + v_.front);
  }
  layout.k_row_stride = k_.row_stride;
  layout.k_head_stride = k_.head_stride;
  layout.v_row_stride = v_.row_stride;
  layout.v_head_stride = v_.head_stride;
  layout.n_rows = n_rows_;
  return layout;
}

ConstCacheLayout TestCache::const_layout() const {
  ConstCacheLayout layout;
  layout.dtype = dtype_;
  layout.shape = shape_;
  for (std::uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    layout.k.push_back(k_.layers[layer].data() + k_.front);
    layout.v.push_back(v_.layers[layer].data() + v_.front);
  }
  layout.k_row_stride = k_.row_stride;
  layout.k_head_stride = k_.head_stride;
  layout.v_row_stride = v_.row_stride;
  layout.v_head_stride = v_.head_stride;
  layout.n_rows = n_rows_;
  return layout;
}

Head TestCache::k(std::uint32_t layer, std::size_t row, std::uint32_t head) const {
  return {dtype_,
          k_.layers[layer].data() + cell(k_.front, row, k_.row_stride, head, k_.head_stride)};
}

Head TestCache::v(std::uint32_t layer, std::size_t row, std::uint32_t head) const {
  return {dtype_,
          v_.layers[layer].data() + cell(v_.front, row, v_.row_stride, head, v_.head_stride)};
}

bool TestCache::intact_except(std::span<const std::uint32_t> rows) const {
  return intact(k_, rows) && intact(v_, rows);
}

bool TestCache::intact(const Grid& grid, std::span<const std::uint32_t> rows) const {
  for (std::size_t layer = 0; layer < grid.layers.size(); ++layer) {
    std::vector<std::byte> now = grid.layers[layer];
    for (const std::uint32_t row : rows) {
      for (std::size_t head = 0; head < shape_.n_kv_heads; ++head) {
        const std::size_t at = cell(grid.front, row, grid.row_stride, head, grid.head_stride);
        std::copy_n(grid.before[layer].begin() + static_cast<std::ptrdiff_t>(at), grid.head_bytes,
                    now.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    if (now != grid.before[layer]) {
      return false;
    }
  }
  return true;
}

}  // namespace inferscale::kernels
