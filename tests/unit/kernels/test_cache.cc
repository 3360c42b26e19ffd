#include "unit/kernels/test_cache.h"

#include <algorithm>
#include <cstring>

namespace inferscale::kernels {
namespace {

constexpr std::size_t kGap = 12;

bool has_blocks(Arrangement arrangement) {
  return arrangement == Arrangement::kBlocks || arrangement == Arrangement::kHeadMajorBlocks ||
         arrangement == Arrangement::kPairedBlocks;
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
    case Arrangement::kBlocks:
      return "blocks";
    case Arrangement::kHeadMajorBlocks:
      return "head-major blocks";
    case Arrangement::kPairedBlocks:
      return "blocks of K and V side by side";
  }
  return "?";
}

TestCache::TestCache(const KvShape& shape, KvCodec dtype, std::size_t n_rows,
                     Arrangement arrangement, std::size_t block)
    : shape_(shape), dtype_(dtype), n_rows_(n_rows), block_(has_blocks(arrangement) ? block : 0) {
  k_.head_dim = shape.head_dim_k;
  v_.head_dim = shape.head_dim_v;
  arrange(&k_, arrangement);
  arrange(&v_, arrangement);
  fill(&k_, 1000);
  fill(&v_, 2000);
}

void TestCache::arrange(Grid* grid, Arrangement arrangement) const {
  const std::size_t heads = shape_.n_kv_heads;
  const std::size_t head_bytes = grid->head_dim * codec_element_bytes(dtype_);
  CacheStrides& strides = grid->strides;
  strides.head = head_bytes;
  strides.row = heads * head_bytes;
  switch (arrangement) {
    case Arrangement::kPacked:
      break;
    case Arrangement::kPaddedRows:
      strides.row += kGap;
      break;
    case Arrangement::kPaddedHeads:
      strides.head += kGap;
      strides.row = heads * strides.head + kGap;
      break;
    case Arrangement::kHeadMajor:
      strides.row = head_bytes;
      strides.head = n_rows_ * head_bytes;
      break;
    case Arrangement::kOddBase:
      grid->front = 1;
      break;
    case Arrangement::kBlocks:
      strides.block = block_ * strides.row + kGap;
      break;
    case Arrangement::kHeadMajorBlocks:
      strides.row = head_bytes;
      strides.head = block_ * strides.row;
      strides.block = heads * strides.head;
      break;
    case Arrangement::kPairedBlocks:
      strides.row = 2 * head_bytes;
      strides.head = block_ * strides.row;
      strides.block = heads * strides.head;
      break;
  }
}

std::size_t TestCache::cell(const Grid& grid, std::size_t row, std::size_t head) const {
  const CacheStrides& strides = grid.strides;
  const std::size_t block = block_ == 0 ? 0 : row / block_;
  const std::size_t in_block = block_ == 0 ? row : row % block_;
  return grid.front + block * strides.block + in_block * strides.row + head * strides.head;
}

Head TestCache::head(const Grid& grid, std::uint32_t layer, std::size_t row,
                     std::size_t head) const {
  return {dtype_, grid.layers[layer].data() + cell(grid, row, head), grid.strides.element};
}

void TestCache::fill(Grid* grid, std::uint64_t seed) const {
  const std::size_t heads = shape_.n_kv_heads;
  const std::size_t element = codec_element_bytes(dtype_);
  const std::size_t step = grid->strides.element == 0 ? element : grid->strides.element;
  const std::size_t size =
      cell(*grid, n_rows_ - 1, heads - 1) + (grid->head_dim - 1) * step + element;
  std::vector<std::byte> content(grid->head_dim * element);
  for (std::uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    std::vector<std::byte> bytes(size, std::byte{0xA5});
    for (std::size_t row = 0; row < n_rows_; ++row) {
      for (std::size_t head = 0; head < heads; ++head) {
        fill_random(dtype_, content.data(), grid->head_dim,
                    seed + (layer * n_rows_ + row) * heads + head);
        std::byte* to = bytes.data() + cell(*grid, row, head);
        for (std::size_t i = 0; i < grid->head_dim; ++i) {
          std::memcpy(to + i * step, content.data() + i * element, element);
        }
      }
    }
    grid->before.push_back(bytes);
    grid->layers.push_back(std::move(bytes));
  }
}

template <typename Layout>
void TestCache::describe_to(Layout* layout) const {
  layout->dtype = dtype_;
  layout->shape = shape_;
  layout->k_strides = k_.strides;
  layout->v_strides = v_.strides;
  layout->rows_per_block = block_;
  layout->n_rows = n_rows_;
}

CacheLayout TestCache::layout() {
  CacheLayout layout;
  describe_to(&layout);
  for (std::uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    layout.k.push_back(k_.layers[layer].data() + k_.front);
    layout.v.push_back(v_.layers[layer].data() + v_.front);
  }
  return layout;
}

ConstCacheLayout TestCache::const_layout() const {
  ConstCacheLayout layout;
  describe_to(&layout);
  for (std::uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    layout.k.push_back(k_.layers[layer].data() + k_.front);
    layout.v.push_back(v_.layers[layer].data() + v_.front);
  }
  return layout;
}

Head TestCache::k(std::uint32_t layer, std::size_t row, std::uint32_t head) const {
  return this->head(k_, layer, row, head);
}

Head TestCache::v(std::uint32_t layer, std::size_t row, std::uint32_t head) const {
  return this->head(v_, layer, row, head);
}

bool TestCache::intact_except(std::span<const std::uint32_t> rows) const {
  return intact(k_, rows) && intact(v_, rows);
}

bool TestCache::intact(const Grid& grid, std::span<const std::uint32_t> rows) const {
  const std::size_t element = codec_element_bytes(dtype_);
  const std::size_t step = grid.strides.element == 0 ? element : grid.strides.element;
  for (std::size_t layer = 0; layer < grid.layers.size(); ++layer) {
    const std::byte* before = grid.before[layer].data();
    std::vector<std::byte> now = grid.layers[layer];
    for (const std::uint32_t row : rows) {
      for (std::size_t head = 0; head < shape_.n_kv_heads; ++head) {
        const std::size_t at = cell(grid, row, head);
        for (std::size_t i = 0; i < grid.head_dim; ++i) {
          std::memcpy(now.data() + at + i * step, before + at + i * step, element);
        }
      }
    }
    if (now != grid.before[layer]) {
      return false;
    }
  }
  return true;
}

}  // namespace inferscale::kernels
