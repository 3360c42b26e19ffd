#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "inferscale/kv_kernels.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/targets.h"
#include "unit/kernels/test_cache.h"

// Gate E4: keys taken out of a cache and put back at the same positions, over all positions of a
// model. Logits hardly see errors of this size, so nothing else would notice a loss here.
namespace inferscale::kernels {
namespace {

class RoundTripTest : public TargetTest {};
INFERSCALE_ON_EVERY_TARGET(RoundTripTest);

constexpr KvShape kShape{1, 1, 64, 2};

// One layer and head of `n` rows whose keys are about normal, far from f16's subnormals.
struct FlatCache {
  FlatCache(KvCodec codec, std::uint32_t n)
      : dtype(codec),
        n_rows(n),
        k(64 * n * codec_element_bytes(codec)),
        v(2 * n * codec_element_bytes(codec)) {}

  // Every row is random up to the 2,003rd; then they repeat, at other positions.
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const std::size_t element = codec_element_bytes(dtype);
    const std::size_t drawn = 64 * std::min(n_rows, 2003U);
    for (std::size_t i = 0; i < drawn; ++i) {
      const double value = normal(random);
      write_element(dtype, value + std::copysign(0.01, value), k.data() + i * element);
    }
    for (std::size_t i = drawn * element; i < k.size(); ++i) {
      k[i] = k[i - drawn * element];
    }
  }

  CacheLayout layout() {
    const std::size_t element = codec_element_bytes(dtype);
    CacheLayout layout{dtype, kShape, {k.data()}, {v.data()}};
    layout.k_strides.row = layout.k_strides.head = 64 * element;
    layout.v_strides.row = layout.v_strides.head = 2 * element;
    layout.n_rows = n_rows;
    return layout;
  }

  ConstCacheLayout const_layout() const {
    const std::size_t element = codec_element_bytes(dtype);
    ConstCacheLayout layout{dtype, kShape, {k.data()}, {v.data()}};
    layout.k_strides.row = layout.k_strides.head = 64 * element;
    layout.v_strides.row = layout.v_strides.head = 2 * element;
    layout.n_rows = n_rows;
    return layout;
  }

  KvCodec dtype;
  std::uint32_t n_rows;
  std::vector<std::byte> k;
  std::vector<std::byte> v;
};

// The largest error of a pair relative to its norm in `before`.
double worst_error(const RopeSpec& spec, const FlatCache& before, const FlatCache& after) {
  const std::size_t element = codec_element_bytes(before.dtype);
  const std::size_t n = spec.rotary_dim / 2;
  const bool adjacent = spec.pairing == RopePairing::kAdjacent;
  double worst = 0;
  for (std::size_t row = 0; row < before.n_rows; ++row) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t ix = (row * 64 + (adjacent ? 2 * i : i)) * element;
      const std::size_t iy = (row * 64 + (adjacent ? 2 * i + 1 : i + n)) * element;
      const double x = read_element(before.dtype, before.k.data() + ix);
      const double y = read_element(before.dtype, before.k.data() + iy);
      const double dx = read_element(after.dtype, after.k.data() + ix) - x;
      const double dy = read_element(after.dtype, after.k.data() + iy) - y;
      worst = std::max(worst, std::hypot(dx, dy) / std::hypot(x, y));
    }
  }
  return worst;
}

// The same keys for every spec.
const FlatCache& keys_of(KvCodec codec, std::uint32_t n_positions) {
  static std::map<std::pair<KvCodec, std::uint32_t>, FlatCache> caches;
  const auto [entry, is_new] =
      caches.try_emplace({codec, n_positions}, FlatCache(codec, n_positions));
  if (is_new) {
    entry->second.fill(99);
  }
  return entry->second;
}

// Negative when a call failed.
double round_trip(const RopeSpec& spec, KvCodec codec, std::uint32_t n_positions) {
  const auto table = table_of(spec, n_positions);
  const FlatCache& before = keys_of(codec, n_positions);
  FlatCache after(codec, n_positions);
  auto builder =
      RecordBuilder::create(meta_of(kShape, codec), std::vector<TokenId>(n_positions, 1));
  if (!builder.ok() || !kv_capture(before.const_layout(), {}, *table, *builder).ok()) {
    return -1;
  }
  const auto record = std::move(*builder).seal();
  const ComposeItem items[] = {{record.get(), 0, 0, {}}};
  if (!kv_compose(items, *table, after.layout()).ok()) {
    return -1;
  }
  return worst_error(spec, before, after);
}

void expect_gate(std::uint32_t n_positions) {
  for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalves}) {
    for (const RopeSpec& spec : specs_of_every_scaling(pairing, 64)) {
      SCOPED_TRACE(describe(spec));
      const double half = round_trip(spec, KvCodec::kF16, n_positions);
      EXPECT_GE(half, 0.0);
      EXPECT_LE(half, 1e-3);
      const double single = round_trip(spec, KvCodec::kF32, n_positions);
      EXPECT_GE(single, 0.0);
      EXPECT_LE(single, 1e-6);
    }
  }
}

TEST_P(RoundTripTest, EveryPositionOf8192) { expect_gate(8192); }

// The longest context of the supported families, once, on the target that would be used.
TEST(LongRoundTripTest, EveryPositionOf131072) {
  const RopeSpec spec = specs_of_every_scaling(RopePairing::kAdjacent, 64)[2];
  const double half = round_trip(spec, KvCodec::kF16, 131072);
  EXPECT_GE(half, 0.0);
  EXPECT_LE(half, 1e-3);
  const double single = round_trip(spec, KvCodec::kF32, 131072);
  EXPECT_GE(single, 0.0);
  EXPECT_LE(single, 1e-6);
}

}  // namespace
}  // namespace inferscale::kernels
