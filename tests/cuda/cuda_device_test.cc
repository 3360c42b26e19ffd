#include "kv/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "connector/rank_store.h"
#include "cuda/move_rig.h"
#include "unit/kernels/reference.h"
#include "unit/kv/sample_records.h"

namespace inferscale::cuda {
namespace {

using testing::hash_of;
using testing::key_of;

constexpr std::uint32_t kRows = 128;
constexpr std::uint32_t kTokens = 27;
const KvShape kShape{4, 4, 64, 64};

struct Budgets {
  const char* name;
  std::uint64_t gpu;
  std::uint64_t pinned;
};

/// A rank's store over a device, and an engine's cache in its memory whose rows 0 .. kTokens - 1
/// hold keys and values of tokens that stand at position 10 and on.
class CudaDeviceTest : public ::testing::TestWithParam<Budgets> {
 protected:
  void SetUp() override {
    INFERSCALE_NEEDS_DEVICE();
    RankStoreOptions options;
    options.host_budget_bytes = 64U << 20;
    options.spec.architecture = "llama";
    options.spec.shape = kShape;
    options.spec.rope.pairing = RopePairing::kHalves;
    options.spec.rope.rotary_dim = 64;
    options.spec.fingerprint = hash_of(0x11);
    options.codec = KvCodec::kBf16;
    options.max_positions = 4096;
    auto opened = RankStore::open(std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    store_ = std::move(*opened);
    const Status attached =
        store_->attach_device(make_cuda_device, 0, GetParam().gpu, GetParam().pinned);
    ASSERT_TRUE(attached.ok()) << attached.to_string();
    const auto content =
        kernels::random_record(kernels::meta_of(kShape, KvCodec::kBf16), kTokens, 5);
    std::vector<std::uint32_t> first(kTokens);
    std::iota(first.begin(), first.end(), 0U);
    const ComposeItem items[] = {{content.get(), 10, 0, first}};
    ASSERT_TRUE(kv_compose(items, store_->rope(), image_.at(image_.bytes.data())).ok());
    cache_ = to_device(image_.bytes);
    ASSERT_TRUE(store_->bind_cache(image_.at(cache_.data()), 256).ok());
  }

  static std::vector<TokenId> tokens() {
    std::vector<TokenId> ids(kTokens);
    std::iota(ids.begin(), ids.end(), 100);
    return ids;
  }
  static std::vector<std::uint32_t> rows_from(std::uint32_t first) {
    std::vector<std::uint32_t> rows(kTokens);
    for (std::uint32_t i = 0; i < kTokens; ++i) {
      rows[i] = first + (i * 7) % kTokens;  // in no order
    }
    return rows;
  }
  void capture(std::uint32_t number) {
    std::vector<std::uint32_t> rows(kTokens);
    std::iota(rows.begin(), rows.end(), 0U);
    CaptureItem item;
    item.meta = {key_of(number), hash_of(0x33), hash_of(0x22), ContextKind::kWindow, 7};
    item.tokens = tokens();
    item.first_position = 10;
    auto pending = store_->capture_paged({std::move(item)}, rows, nullptr);
    ASSERT_TRUE(pending.ok()) << pending.status().to_string();
    ASSERT_TRUE(pending->wait().ok());
    const Status stored = store_->store(*pending, 0);
    ASSERT_TRUE(stored.ok()) << stored.to_string();
  }
  [[nodiscard]] PreparedLoad prepare(std::uint32_t number) const {
    LoadItem item;
    item.key = key_of(number);
    item.scope = hash_of(0x33);
    item.context_id = hash_of(0x22);
    item.tokens = tokens();
    item.first_position = 10;
    return store_->prepare({&item, 1});
  }
  /// Whether these rows of the device's cache hold what the first rows held: values bit for bit,
  /// keys but for the roundings of a rotation back and forth.
  void expect_placed(const std::vector<std::uint32_t>& rows) {
    std::vector<std::byte> bytes = image_.bytes;
    from_device(cache_, &bytes);
    const ConstCacheLayout want = image_.at(std::as_const(image_.bytes).data());
    const ConstCacheLayout got = image_.at(std::as_const(bytes).data());
    const auto at = [](const ConstCacheLayout& cache, const std::byte* layer,
                       const CacheStrides& strides, std::size_t row, std::size_t head) {
      return layer + row / cache.rows_per_block * strides.block +
             row % cache.rows_per_block * strides.row + head * strides.head;
    };
    for (std::uint32_t layer = 0; layer < kShape.n_layers; ++layer) {
      for (std::uint32_t token = 0; token < kTokens; ++token) {
        for (std::uint32_t head = 0; head < kShape.n_kv_heads; ++head) {
          ASSERT_EQ(std::memcmp(at(want, want.v[layer], want.v_strides, token, head),
                                at(got, got.v[layer], got.v_strides, rows[token], head),
                                kShape.head_dim_v * 2),
                    0);
          const std::byte* k = at(want, want.k[layer], want.k_strides, token, head);
          const std::byte* turned = at(got, got.k[layer], got.k_strides, rows[token], head);
          for (std::uint32_t i = 0; i < kShape.head_dim_k; ++i) {
            const double one = kernels::read_element(KvCodec::kBf16, k + 2 * i);
            const double other = kernels::read_element(KvCodec::kBf16, turned + 2 * i);
            const std::uint32_t partner = (i + 32) % 64;
            const double norm =
                std::hypot(one, kernels::read_element(KvCodec::kBf16, k + 2 * partner));
            ASSERT_LE(std::fabs(one - other), norm / 64);
          }
        }
      }
    }
  }

  CacheImage image_{kShape, KvCodec::kBf16, CacheKind::kPaired, kRows};
  Buffer cache_;
  std::unique_ptr<RankStore> store_;
};

TEST_P(CudaDeviceTest, WhatWasCapturedIsPlacedAgain) {
  capture(1);
  for (std::uint32_t round = 0; round < 3; ++round) {  // from wherever it has come up to
    const std::vector<std::uint32_t> rows = rows_from(32 * (round + 1));
    {
      const PreparedLoad load = prepare(1);
      ASSERT_TRUE(load.status().ok()) << load.status().to_string();
      const PreparedLoad* const loads[] = {&load};
      const Status placed = store_->compose_paged(loads, rows, nullptr);
      ASSERT_TRUE(placed.ok()) << placed.to_string();
    }
    expect_placed(rows);
  }
}

TEST_P(CudaDeviceTest, MoreRecordsThanFitComeAndGo) {
  for (std::uint32_t number = 1; number <= 12; ++number) {
    capture(number);
  }
  for (std::uint32_t step = 0; step < 40; ++step) {
    const PreparedLoad load = prepare(1 + step * 5 % 12);
    ASSERT_TRUE(load.status().ok()) << load.status().to_string();
    const PreparedLoad* const loads[] = {&load};
    ASSERT_TRUE(store_->compose_paged(loads, rows_from(64), nullptr).ok());
    if (step % 8 == 7) {
      expect_placed(rows_from(64));
    }
    ASSERT_TRUE(synchronize(nullptr).ok());
  }
  const Result<StoreVerdict> verdict = store_->verify();
  ASSERT_TRUE(verdict.ok());
  EXPECT_TRUE(verdict->corrupt.empty());
}

TEST_P(CudaDeviceTest, AnEraseWaitsForTheStreamAndLeavesNothing) {
  capture(1);
  {
    const PreparedLoad load = prepare(1);
    const PreparedLoad* const loads[] = {&load};
    ASSERT_TRUE(store_->compose_paged(loads, rows_from(32), nullptr).ok());
  }
  const RecordKey keys[] = {key_of(1)};
  const Result<EraseCounts> counts = store_->erase(keys);
  ASSERT_TRUE(counts.ok()) << counts.status().to_string();
  EXPECT_EQ(counts->leased, 0U);
  EXPECT_GE(counts->gpu + counts->pinned, 1U);
  expect_placed(rows_from(32));
  EXPECT_EQ(prepare(1).status().code(), StatusCode::kNotFound);
  for (const TierStats& tier : store_->stats()->tiers) {
    EXPECT_EQ(tier.records + tier.bytes + tier.dead_bytes, 0U) << tier.name;
  }
}

// A record has 7 pages of 16 KiB.
INSTANTIATE_TEST_SUITE_P(Tiers, CudaDeviceTest,
                         ::testing::Values(Budgets{"Gpu", 40U * 16384, 0},
                                           Budgets{"Pinned", 0, 40U * 16384},
                                           Budgets{"Both", 16U * 16384, 40U * 16384}),
                         [](const auto& of) { return of.param.name; });

TEST(CudaDevice, SaysWhenThereIsNoSuchDevice) {
  DeviceOptions options;
  options.layout = {kShape, KvCodec::kBf16, 4};
  options.gpu_budget_bytes = 1U << 20;
  for (const int index : {-1, 1000}) {
    options.device = index;
    EXPECT_EQ(make_cuda_device(options).status().code(), StatusCode::kUnsupported);
  }
  options.layout.tokens_per_page = 0;
  EXPECT_EQ(make_cuda_device(options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::cuda
