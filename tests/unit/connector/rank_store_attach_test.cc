#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "connector/rank_store.h"
#include "unit/connector/rank_fixture.h"

namespace inferscale::testing {
namespace {

constexpr std::size_t kRows = 24;

/// A store that is given a device of plain memory after it was opened, and a cache with rows in it.
class RankStoreAttach : public ::testing::Test {
 protected:
  Status attach(std::uint64_t gpu_budget = 1U << 18, std::uint64_t pinned_budget = 1U << 18) {
    const Status attached = store_->attach_device(make_plain_device, 0, gpu_budget, pinned_budget);
    return attached.ok() ? store_->bind_cache(cache_.layout(), 16, 8) : attached;
  }
  static CaptureItem item(std::uint32_t number) { return {meta_of(number), tokens_of(number), 10}; }

  /// As without a device: from rows of the host.
  Status capture(std::uint32_t number) {
    return store_->capture(meta_of(number), tokens_of(number), 10,
                           Rows(3, model().shape, 2).const_layout());
  }
  /// Captures three rows from `first` on as record `number`.
  Status keep(std::uint32_t number, std::uint32_t first) {
    Result<PendingCapture> pending =
        store_->capture_paged({item(number)}, std::vector{first, first + 1, first + 2}, nullptr);
    if (!pending.ok()) {
      return pending.status();
    }
    const Status waited = pending->wait();
    return waited.ok() ? store_->store(*pending, 0) : waited;
  }
  Status place(const std::vector<LoadItem>& items, const std::vector<std::uint32_t>& rows) {
    const PreparedLoad load = store_->prepare(items);
    const PreparedLoad* const loads[] = {&load};
    return load.status().ok() ? store_->compose_paged(loads, rows, nullptr) : load.status();
  }
  static LoadItem part(std::uint32_t number, std::uint32_t position, std::uint32_t first,
                       std::uint32_t n) {
    LoadItem wanted = item_of(number, position);
    wanted.first_token = first;
    wanted.n_tokens = n;
    return wanted;
  }
  /// Whether two rows of the cache hold the same, keys up to a rounding.
  [[nodiscard]] bool same(std::size_t a, std::size_t b) const {
    const std::size_t k = cache_.shape.k_elements(), v = cache_.shape.v_elements();
    float worst = 0;
    bool equal = true;
    for (std::uint32_t layer = 0; layer < cache_.shape.n_layers; ++layer) {
      for (std::size_t i = 0; i < k; ++i) {
        worst = std::max(worst, std::fabs(cache_.k[(layer * kRows + a) * k + i] -
                                          cache_.k[(layer * kRows + b) * k + i]));
      }
      equal = equal && std::memcmp(&cache_.v[(layer * kRows + a) * v],
                                   &cache_.v[(layer * kRows + b) * v], v * sizeof(float)) == 0;
    }
    return equal && worst < 1e-4F;
  }

  Rows cache_{kRows, model().shape, 1};
  std::unique_ptr<RankStore> store_ = open(options());
};

TEST_F(RankStoreAttach, ServesFromThenOn) {
  ASSERT_TRUE(capture(7).ok()) << "without a device";
  EXPECT_EQ(store_->device_tokens(), 0U);
  ASSERT_TRUE(attach().ok());
  EXPECT_GT(store_->device_tokens(), 0U);
  ASSERT_TRUE(keep(1, 2).ok());
  ASSERT_TRUE(place({item_of(1, 10)}, {20, 17, 9}).ok());
  EXPECT_TRUE(same(20, 2) && same(17, 3) && same(9, 4));
  EXPECT_TRUE(place({item_of(7, 10)}, {20, 17, 9}).ok()) << "what was there before";
  EXPECT_EQ(attach().code(), StatusCode::kInvalidArgument) << "a second one";
}

TEST_F(RankStoreAttach, ADeviceThatIsNotToBeHadLeavesTheStoreAsItWas) {
  ASSERT_TRUE(capture(7).ok());
  EXPECT_EQ(attach(0, 0).code(), StatusCode::kInvalidArgument);
  const DeviceFactory none = [](const DeviceOptions& /*options*/) {
    return Result<std::unique_ptr<DeviceBackend>>(unsupported("no such device"));
  };
  EXPECT_EQ(store_->attach_device(none, 0, 1U << 18, 0).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(store_->contains(key_of(7)));
  const LoadItem item = item_of(7, 10);
  EXPECT_TRUE(store_->prepare(std::span(&item, 1)).status().ok());
  EXPECT_TRUE(attach().ok());
}

TEST_F(RankStoreAttach, PlacesPartsOfRecordsOneAfterTheOther) {
  ASSERT_TRUE(attach().ok());
  ASSERT_TRUE(keep(1, 2).ok());
  ASSERT_TRUE(keep(2, 6).ok());
  ASSERT_TRUE(place({part(1, 10, 1, 2), part(2, 10, 0, 1)}, {20, 21, 22}).ok());
  EXPECT_TRUE(same(20, 3) && same(21, 4) && same(22, 6));
  EXPECT_EQ(place({part(1, 10, 2, 2)}, {20, 21}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(place({part(1, 10, 4, 0)}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(place({part(1, 10, 1, 2)}, {20, 21, 22}).code(), StatusCode::kInvalidArgument);
}

TEST_F(RankStoreAttach, RowsOfTheHostTakeWholeRecords) {
  ASSERT_TRUE(capture(1).ok());
  const LoadItem some = part(1, 10, 1, 2), all = part(1, 10, 0, 3);
  EXPECT_EQ(store_->prepare(std::span(&some, 1)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(store_->prepare(std::span(&all, 1)).status().ok());
}

TEST_F(RankStoreAttach, CapturesAreLookedAtAndStoredOneByOne) {
  ASSERT_TRUE(attach().ok());
  Result<PendingCapture> pending = store_->capture_paged(
      {item(1), item(2)}, std::vector<std::uint32_t>{2, 3, 4, 6, 7, 8}, nullptr);
  ASSERT_TRUE(pending.ok());
  const std::vector<float> before = cache_.k;
  std::fill(cache_.k.begin(), cache_.k.end(), 0.0F);  // the engine goes on
  ASSERT_TRUE(pending->wait().ok());
  EXPECT_EQ(pending->size(), 2U);
  const auto keys = store_->first_layer_keys(*pending, 1);
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ(keys->size(), 3 * model().shape.k_elements());
  EXPECT_EQ(store_->first_layer_keys(*pending, 2).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(store_->store(*pending, 1).ok());
  EXPECT_FALSE(store_->contains(key_of(1)));
  EXPECT_TRUE(store_->contains(key_of(2)));
  cache_.k = before;
  ASSERT_TRUE(place({item_of(2, 10)}, {20, 21, 22}).ok());
  EXPECT_TRUE(same(20, 6) && same(22, 8));
}

}  // namespace
}  // namespace inferscale::testing
