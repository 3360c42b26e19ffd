#include "cuda/move_rig.h"

#include <algorithm>
#include <cerrno>  // program_invocation_short_name
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "unit/kernels/reference.h"

namespace inferscale::cuda {
namespace {

constexpr std::size_t kBlockRows = 16;
constexpr std::byte kPoison{0xA5};

std::byte* offset(std::size_t value) { return reinterpret_cast<std::byte*>(value); }
std::size_t offset(const std::byte* value) { return reinterpret_cast<std::size_t>(value); }

// Are turned elements as alike as two ways to compute them in fp32 allow? One rounding to the type
// that they are kept in, and the arithmetic's own error, which is relative to the pair's norm.
bool alike(KvCodec codec, double want, double partner, double got, double bias) {
  const double norm = std::hypot(std::fabs(want) + bias, std::fabs(partner) + bias);
  const double allowed = kernels::last_place(codec, want) + norm * std::ldexp(1.0, -22);
  return std::fabs(want - got) <= allowed;
}

std::uint32_t partner_of(std::uint32_t i, const Turned& turned) {
  if (turned.pairing == RopePairing::kAdjacent) {
    return i ^ 1U;
  }
  const std::uint32_t half = turned.rotary_dim / 2;
  return i < half ? i + half : i - half;
}

}  // namespace

CacheImage::CacheImage(const KvShape& shape, KvCodec dtype, CacheKind kind, std::size_t n_rows) {
  const std::size_t e = codec_element_bytes(dtype);
  const std::size_t k_head = shape.head_dim_k * e;
  const std::size_t v_head = shape.head_dim_v * e;
  const std::size_t heads = shape.n_kv_heads;
  const bool blocks = kind == CacheKind::kApart || kind == CacheKind::kPaired ||
                      kind == CacheKind::kPackedRows || kind == CacheKind::kPackedHeads;
  const std::size_t n_blocks = (n_rows + kBlockRows - 1) / kBlockRows;
  layout_.shape = shape;
  layout_.dtype = dtype;
  layout_.rows_per_block = blocks ? kBlockRows : 0;
  layout_.n_rows = blocks ? n_blocks * kBlockRows : n_rows;
  CacheStrides& k = layout_.k_strides;
  CacheStrides& v = layout_.v_strides;
  const std::size_t gap = kind == CacheKind::kPaddedRows ? 12 : 0;
  k = {heads * k_head + gap, k_head, 0, kBlockRows * heads * k_head};
  v = {heads * v_head + gap, v_head, 0, kBlockRows * heads * v_head};
  std::size_t v_at = layout_.n_rows * (heads * k_head + gap);
  std::size_t layer = v_at + layout_.n_rows * (heads * v_head + gap);
  if (kind == CacheKind::kPaired) {
    v_at = k.block;
    k.block = v.block = k.block + v.block;
  } else if (kind == CacheKind::kPackedRows) {
    v_at = k_head;
    k = v = {heads * (k_head + v_head), k_head + v_head, 0, kBlockRows * heads * (k_head + v_head)};
  } else if (kind == CacheKind::kPackedHeads) {
    v_at = k_head;
    k = v = {k_head + v_head, kBlockRows * (k_head + v_head), 0,
             kBlockRows * heads * (k_head + v_head)};
  }
  const std::size_t front = kind == CacheKind::kOddAddress ? 1 : 0;
  if (front == 0 && gap == 0) {
    layer = (layer + 63) / 64 * 64;
  }
  for (std::uint32_t l = 0; l < shape.n_layers; ++l) {
    layout_.k.push_back(offset(front + l * layer));
    layout_.v.push_back(offset(front + l * layer + v_at));
  }
  bytes.assign(front + shape.n_layers * layer, kPoison);
}

CacheLayout CacheImage::at(std::byte* base) const {
  CacheLayout layout = layout_;
  for (std::uint32_t l = 0; l < layout.shape.n_layers; ++l) {
    layout.k[l] = base + offset(layout_.k[l]);
    layout.v[l] = base + offset(layout_.v[l]);
  }
  return layout;
}

ConstCacheLayout CacheImage::at(const std::byte* base) const {
  const CacheLayout layout = at(const_cast<std::byte*>(base));
  ConstCacheLayout view{layout.dtype, layout.shape, {}, {}};
  view.k.assign(layout.k.begin(), layout.k.end());
  view.v.assign(layout.v.begin(), layout.v.end());
  view.k_strides = layout.k_strides;
  view.v_strides = layout.v_strides;
  view.rows_per_block = layout.rows_per_block;
  view.n_rows = layout.n_rows;
  return view;
}

std::vector<MoveCase> move_cases() {
  const RopePairing halves = RopePairing::kHalves;
  const RopePairing adjacent = RopePairing::kAdjacent;
  return {{"Llama-3.1-8B", {6, 8, 128, 128}, 128, halves},
          {"Qwen2.5-7B", {3, 4, 128, 128}, 128, halves},
          {"Qwen3-14B, a shard of 8", {5, 1, 128, 128}, 128, halves},
          {"Mistral-7B in GGUF", {4, 8, 128, 128}, 128, adjacent},
          {"SmolLM2-135M", {5, 3, 64, 64}, 64, adjacent},
          {"heads of 96", {2, 5, 96, 96}, 96, halves},
          {"heads of 256", {2, 2, 256, 256}, 256, halves},
          {"64 heads of 64", {1, 64, 64, 64}, 64, halves},
          {"half turned", {3, 2, 128, 128}, 64, halves},
          {"a quarter turned, adjacent", {3, 2, 64, 64}, 16, adjacent},
          {"all but one chunk turned", {2, 3, 72, 72}, 64, halves},
          {"K longer than V", {2, 3, 192, 128}, 192, halves},
          {"V longer than K", {2, 3, 64, 136}, 64, halves},
          {"pairs that end in a chunk", {2, 5, 80, 48}, 20, halves},
          {"heads of 34 and 30", {1, 2, 34, 30}, 34, adjacent},
          {"the smallest heads", {2, 1, 2, 1}, 2, halves},
          {"heads of 130 and 129", {1, 2, 130, 129}, 126, adjacent},
          {"Qwen2.5-7B, with its bias", {3, 4, 128, 128}, 128, halves, true},
          {"a bias, adjacent", {5, 3, 64, 64}, 64, adjacent, true},
          {"a bias, half turned", {3, 2, 128, 128}, 64, halves, true},
          {"a bias, all but one chunk turned", {2, 3, 72, 72}, 64, halves, true},
          {"a bias, heads of 130 and 129", {2, 2, 130, 129}, 126, adjacent, true},
          {"one long head", {2, 1, 1024, 1}, 1024, halves}};
}

RopeSpec rope_of(const MoveCase& c) {
  // Llama 3's scaling by halves, YaRN (with mscale) where pairs are adjacent.
  return kernels::specs_of_every_scaling(c.pairing,
                                         c.rotary_dim)[c.pairing == RopePairing::kHalves ? 2 : 3];
}

std::shared_ptr<const RopeTable> table_of(const MoveCase& c) {
  return kernels::table_of(rope_of(c), kPositions,
                           c.biased ? kernels::large_bias(c.shape) : std::vector<float>());
}

void use_table(const RopeTable& table, RowMoves* moves) {
  moves->cos = table.cos_row(0);
  moves->sin = table.sin_row(0);
  moves->key_bias = table.key_bias().empty() ? nullptr : table.key_bias().data();
}

PagedRecords::PagedRecords(const PageLayout& layout, const std::vector<std::uint32_t>& tokens,
                           const std::vector<MemoryKind>& where) {
  std::size_t n_pages = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    n_pages += layout.pages_for(tokens[i]);
    records_.push_back(tokens[i] == 0
                           ? nullptr
                           : kernels::random_record(kernels::meta_of(layout.shape, layout.codec),
                                                    tokens[i], 7 * i + 3));
  }
  const std::size_t page_bytes = layout.page_bytes();
  host_.resize((n_pages + 1) * page_bytes + 64);
  auto* host = host_.data() + (64 - offset(host_.data()) % 64) % 64;
  std::vector<std::byte*> arenas = {host};
  for (const MemoryKind kind : where) {
    buffers_.push_back(std::move(Buffer::allocate(kind, (n_pages + 1) * page_bytes)).value());
    arenas.push_back(buffers_.back().data());
  }
  std::vector<std::uint32_t> order(n_pages);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(17));
  std::size_t next = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    pages_.emplace_back();
    for (std::size_t p = 0; p < layout.pages_for(tokens[i]); ++p) {
      const std::size_t at = order[next] * page_bytes;
      record_to_page(layout, *records_[i], p, {host + at, page_bytes});
      std::byte* arena = where.empty() ? host : arenas[1 + next % where.size()];
      if (arena != host) {
        EXPECT_TRUE(copy_async(arena + at, host + at, page_bytes, nullptr).ok());
      }
      pages_.back().push_back(arena + at);
      ++next;
    }
  }
  if (!where.empty()) {
    EXPECT_TRUE(synchronize(nullptr).ok());
  }
}

std::vector<std::vector<std::uint32_t>> scattered_rows(const std::vector<std::uint32_t>& counts,
                                                       std::size_t n_rows) {
  std::vector<std::uint32_t> rows(n_rows);
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), std::mt19937(5));
  std::vector<std::vector<std::uint32_t>> out;
  auto next = rows.begin();
  for (const std::uint32_t count : counts) {
    out.emplace_back(next, next + count);
    next += count;
  }
  return out;
}

void compose_on_cpu(const PagedRecords& records, const std::vector<Placement>& placements,
                    const RopeTable& table, CacheImage* image) {
  std::vector<ComposeItem> items;
  for (const Placement& p : placements) {
    if (!p.rows.empty()) {  // no tokens at all cannot be said there
      items.push_back({records.record(p.record).get(), p.first_position, 0, p.rows, p.first_token,
                       static_cast<std::uint32_t>(p.rows.size())});
    }
  }
  const Status status = kv_compose(items, table, image->at(image->bytes.data()));
  ASSERT_TRUE(status.ok()) << status.to_string();
}

std::vector<PagedItem> items_of(const PagedRecords& records,
                                const std::vector<Placement>& placements) {
  std::vector<PagedItem> items;
  for (const Placement& p : placements) {
    items.push_back({records.pages(p.record), p.first_token,
                     static_cast<std::uint32_t>(p.rows.size()), p.first_position, p.rows});
  }
  return items;
}

::testing::AssertionResult same_heads(KvCodec codec, std::size_t count, std::uint32_t dim,
                                      const Turned& turned, const std::byte* want,
                                      const std::byte* got) {
  const std::size_t element = codec_element_bytes(codec);
  if (std::memcmp(want, got, count * dim * element) == 0) {
    return ::testing::AssertionSuccess();
  }
  for (std::size_t i = 0; i < count * dim; ++i) {
    const auto at = static_cast<std::uint32_t>(i % dim);
    const std::byte* w = want + i * element;
    const std::byte* g = got + i * element;
    bool same = std::memcmp(w, g, element) == 0;
    if (!same && codec_is_scaled(codec) && turned.rotary_dim > 0) {
      const double had = kernels::read_element(codec, w);
      const double difference = std::fabs(had - kernels::read_element(codec, g));
      same = difference <= 2 * kernels::half_step(codec, had, 1);
    }
    if (!same && !codec_is_scaled(codec) && at < turned.rotary_dim) {
      const std::byte* partner = want + (i - at + partner_of(at, turned)) * element;
      same = alike(codec, kernels::read_element(codec, w), kernels::read_element(codec, partner),
                   kernels::read_element(codec, g), turned.bias);
    }
    if (!same) {
      return ::testing::AssertionFailure()
             << "head " << i / dim << " element " << at << " is " << kernels::read_element(codec, g)
             << ", not " << kernels::read_element(codec, w);
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult same_cache(const CacheImage& want, const CacheImage& got,
                                      const Turned& turned) {
  if (want.bytes == got.bytes) {
    return ::testing::AssertionSuccess();
  }
  // Copy what may differ by a rounding, then nothing may differ.
  std::vector<std::byte> rest = got.bytes;
  const ConstCacheLayout w = want.at(want.bytes.data());
  const ConstCacheLayout g = got.at(got.bytes.data());
  for (std::uint32_t l = 0; l < w.shape.n_layers; ++l) {
    for (std::size_t row = 0; row < w.n_rows; ++row) {
      const std::size_t in_block = w.rows_per_block == 0 ? row : row % w.rows_per_block;
      const std::size_t block = w.rows_per_block == 0 ? 0 : row / w.rows_per_block;
      for (std::uint32_t h = 0; h < w.shape.n_kv_heads; ++h) {
        const std::size_t at =
            block * w.k_strides.block + in_block * w.k_strides.row + h * w.k_strides.head;
        const auto same =
            same_heads(w.dtype, 1, w.shape.head_dim_k, turned, w.k[l] + at, g.k[l] + at);
        if (!same) {
          return ::testing::AssertionFailure()
                 << "K of layer " << l << " row " << row << " head " << h << ": " << same.message();
        }
        std::memcpy(rest.data() + (g.k[l] + at - got.bytes.data()), w.k[l] + at,
                    w.shape.head_dim_k * codec_element_bytes(w.dtype));
      }
    }
  }
  const auto differs = std::mismatch(rest.begin(), rest.end(), want.bytes.begin()).first;
  if (differs != rest.end()) {
    return ::testing::AssertionFailure()
           << "byte " << differs - rest.begin() << " of " << rest.size() << " differs";
  }
  return ::testing::AssertionSuccess();
}

Buffer to_device(const std::vector<std::byte>& bytes) {
  Buffer buffer = std::move(Buffer::allocate(MemoryKind::kDevice, bytes.size())).value();
  EXPECT_TRUE(copy_async(buffer.data(), bytes.data(), bytes.size(), nullptr).ok());
  EXPECT_TRUE(synchronize(nullptr).ok());
  return buffer;
}

void from_device(const Buffer& buffer, std::vector<std::byte>* bytes) {
  bytes->assign(buffer.size(), std::byte{0});
  EXPECT_TRUE(copy_async(bytes->data(), buffer.data(), buffer.size(), nullptr).ok());
  const Status status = synchronize(nullptr);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

namespace {

// Says how much a machine without a device did not run, for those who read a log.
class SkipReport : public ::testing::Environment {
 public:
  void TearDown() override {
    const int skipped = ::testing::UnitTest::GetInstance()->skipped_test_count();
    if (skipped > 0) {
      std::printf("CUDA cases skipped: %d of %d of %s, there is no device\n", skipped,
                  ::testing::UnitTest::GetInstance()->test_to_run_count(),
                  program_invocation_short_name);
    }
  }
};
const auto* const kReport = ::testing::AddGlobalTestEnvironment(new SkipReport);

}  // namespace

bool has_device() { return kReport != nullptr && device_count() > 0; }

}  // namespace inferscale::cuda
