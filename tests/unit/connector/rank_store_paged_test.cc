#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "connector/rank_store.h"
#include "support/fake_device.h"
#include "unit/connector/rank_fixture.h"

namespace inferscale::testing {
namespace {

int stream = 0;

/// A store over a device that the test can look into.
struct DeviceRig {
  explicit DeviceRig(std::size_t gpu_pages = 8, std::size_t pinned_pages = 8) {
    const DeviceFactory factory =
        [&](const DeviceOptions& asked) -> Result<std::unique_ptr<DeviceBackend>> {
      auto made = std::make_unique<FakeDevice>(asked.layout, gpu_pages, pinned_pages);
      device = made.get();
      return std::unique_ptr<DeviceBackend>(std::move(made));
    };
    store = open(options());
    EXPECT_TRUE(store->attach_device(factory, 0, 1, 1).ok());
    EXPECT_TRUE(store->bind_cache(cache.layout(), 64).ok());
  }
  /// Records number 1 .. count, of which record n has the values of Rows(3, shape, n).
  void fill(std::uint32_t count) {
    for (std::uint32_t number = 1; number <= count; ++number) {
      Rows rows(3, model().shape, static_cast<float>(number));
      EXPECT_TRUE(store->bind_cache(rows.layout(), 64).ok());
      auto pending = store->capture_paged({item(number)}, three(0), &stream);
      ASSERT_TRUE(pending.ok());
      EXPECT_TRUE(keep_all(*store, std::move(*pending)).at(0).ok());
    }
    EXPECT_TRUE(store->bind_cache(cache.layout(), 64).ok());
  }
  static CaptureItem item(std::uint32_t number) { return {meta_of(number), tokens_of(number), 10}; }
  static std::vector<std::uint32_t> three(std::uint32_t first) {
    return {first, first + 1, first + 2};
  }
  [[nodiscard]] PreparedLoad prepare(std::uint32_t number) const {
    const LoadItem item = item_of(number, 10);
    return store->prepare(std::span(&item, 1));
  }
  Status compose(const PreparedLoad& load, const std::vector<std::uint32_t>& rows) const {
    const PreparedLoad* const loads[] = {&load};
    return store->compose_paged(loads, rows, &stream);
  }
  /// Whether these rows of the cache hold record `number`.
  [[nodiscard]] bool placed(std::uint32_t number, const std::vector<std::uint32_t>& at) const {
    const Rows expected(3, model().shape, static_cast<float>(number));
    const std::size_t row = model().shape.v_elements();
    bool same = true;
    for (std::uint32_t layer = 0; layer < model().shape.n_layers; ++layer) {
      for (std::size_t t = 0; t < at.size(); ++t) {
        const float* from = expected.v.data() + (layer * expected.rows + t) * row;
        same = same &&
               std::equal(from, from + row, cache.v.data() + (layer * cache.rows + at[t]) * row);
      }
    }
    return same;
  }

  FakeDevice* device = nullptr;
  Rows cache{16};
  std::unique_ptr<RankStore> store;
};

TEST(RankStorePaged, OneCallPlacesAllLoadsInTheirRows) {
  DeviceRig rig;
  rig.fill(3);
  const LoadItem two[] = {item_of(3, 5), item_of(1, 8)};
  const PreparedLoad a = rig.store->prepare(two), b = rig.prepare(2);
  const PreparedLoad* const loads[] = {&a, &b};
  const std::vector<std::uint32_t> rows = {4, 15, 0, 7, 8, 2, 11, 10, 9};
  const std::uint64_t publishes = rig.device->gpu_memory->publishes;
  ASSERT_TRUE(rig.store->compose_paged(loads, rows, &stream).ok());
  EXPECT_EQ(rig.device->gpu_memory->publishes, publishes + 1);
  EXPECT_TRUE(rig.placed(3, {4, 15, 0}));
  EXPECT_TRUE(rig.placed(1, {7, 8, 2}));
  EXPECT_TRUE(rig.placed(2, {11, 10, 9}));
  EXPECT_TRUE(rig.store->compose_paged({}, {}, &stream).ok());
}

TEST(RankStorePaged, ABatchOfRunsBecomesRecords) {
  DeviceRig rig;
  for (std::size_t i = 0; i < rig.cache.v.size(); ++i) {
    rig.cache.v[i] = static_cast<float>(i);
  }
  const std::vector<std::uint32_t> rows = {9, 1, 5, 0, 15, 3};
  Result<PendingCapture> pending =
      rig.store->capture_paged({rig.item(1), rig.item(2)}, rows, &stream);
  ASSERT_TRUE(pending.ok()) << pending.status().to_string();
  const std::vector<float> before = std::exchange(rig.cache.v, Rows(16).v);
  EXPECT_TRUE(rig.store->bind_cache(rig.cache.layout(), 64).ok());  // v lies elsewhere now
  EXPECT_FALSE(rig.store->contains(key_of(1)));
  const std::vector<Status> statuses = keep_all(*rig.store, std::move(*pending));
  ASSERT_EQ(statuses.size(), 2U);
  EXPECT_TRUE(statuses[0].ok() && statuses[1].ok());
  ASSERT_TRUE(rig.compose(rig.prepare(2), {0, 15, 3}).ok());
  ASSERT_TRUE(rig.compose(rig.prepare(1), {9, 1, 5}).ok());
  const std::size_t row = model().shape.v_elements();
  for (const std::uint32_t at : rows) {
    EXPECT_TRUE(std::equal(before.data() + at * row, before.data() + (at + 1) * row,
                           rig.cache.v.data() + at * row));
  }
  PendingCapture none;
  EXPECT_TRUE(none.wait().ok());
  EXPECT_EQ(rig.store->store(none, 0).code(), StatusCode::kInvalidArgument);
}

TEST(RankStorePaged, RowsThatDoNotFitAreRefused) {
  DeviceRig rig;
  rig.fill(1);
  const PreparedLoad load = rig.prepare(1);
  for (const std::vector<std::uint32_t>& rows :
       {std::vector<std::uint32_t>{0, 1}, {0, 1, 2, 3}, {0, 1, 16}, {}}) {
    EXPECT_EQ(rig.compose(load, rows).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(rig.store->capture_paged({rig.item(2)}, rows, &stream).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(rig.cache.v, Rows(16).v);
  CaptureItem late = rig.item(2);
  late.first_position = 62;
  EXPECT_EQ(rig.store->capture_paged({late}, rig.three(0), &stream).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.store->bind_cache(rig.cache.layout(), 2).ok());
  EXPECT_EQ(rig.compose(load, rig.three(0)).code(), StatusCode::kInvalidArgument)
      << "more tokens than were provided for";
}

TEST(RankStorePaged, LoadsAreForTheirOwnStore) {
  DeviceRig rig, other;
  rig.fill(1);
  other.fill(1);
  const auto host = open(options());
  EXPECT_EQ(host->bind_cache(rig.cache.layout(), 64).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(
      host->capture(meta_of(1), tokens_of(1), 10, Rows(3, model().shape, 1).const_layout()).ok());
  const LoadItem item = item_of(1, 10);
  const PreparedLoad of_host = host->prepare(std::span(&item, 1));
  EXPECT_EQ(rig.compose(of_host, rig.three(0)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.compose(other.prepare(1), rig.three(0)).code(), StatusCode::kInvalidArgument);
  const PreparedLoad own = rig.prepare(1);
  const PreparedLoad* const loads[] = {&own};
  EXPECT_EQ(host->compose_paged(loads, rig.three(0), &stream).code(), StatusCode::kInvalidArgument);
  Rows out(3);
  EXPECT_EQ(rig.store->compose(loads, out.layout()).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(rig.compose(own, rig.three(0)).ok());
}

// The engine's stream reads the pages after the call: until then they hold the record, whatever
// happens to the load.
TEST(RankStorePaged, PagesStayUntilTheStreamHasReadThem) {
  DeviceRig rig(1, 0);
  rig.fill(2);
  { ASSERT_TRUE(rig.compose(rig.prepare(1), rig.three(0)).ok()); }
  EXPECT_EQ(rig.prepare(2).status().code(), StatusCode::kResourceExhausted);
  rig.device->streams->finish(&stream);
  EXPECT_TRUE(rig.prepare(2).status().ok());
  EXPECT_EQ(rig.device->streams->waits, 0U);
  const RecordKey gone[] = {key_of(1)};
  EXPECT_EQ(rig.store->erase(gone)->host, 1U);
}

TEST(RankStorePaged, ADeviceThatFailsCostsText) {
  DeviceRig rig;
  rig.fill(1);
  const PreparedLoad load = rig.prepare(1);
  rig.device->gpu_memory->fail_publish = true;
  EXPECT_EQ(rig.compose(load, rig.three(0)).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(rig.prepare(1).status().ok()) << "pinned memory is still there";
  rig.device->pinned_memory->fail_publish = true;
  EXPECT_EQ(rig.compose(load, rig.three(0)).code(), StatusCode::kUnavailable);
  const PreparedLoad failed = rig.prepare(1);
  EXPECT_EQ(failed.status().code(), StatusCode::kUnavailable) << failed.status().to_string();
  EXPECT_EQ(failed.failed_key(), key_of(1));
  const KvStoreStats stats = *rig.store->stats();
  EXPECT_EQ(stats.misses_by_reason[static_cast<std::size_t>(MissReason::kDeviceFailed)], 1U);
  EXPECT_NE(stats.tiers.at(0).degraded, "");
}

TEST(RankStorePaged, TooManyMarksAreWaitedFor) {
  DeviceRig rig(1, 0);
  rig.fill(2);
  rig.device->streams->exhausted = true;
  { ASSERT_TRUE(rig.compose(rig.prepare(1), rig.three(0)).ok()); }
  EXPECT_EQ(rig.prepare(2).status().code(), StatusCode::kResourceExhausted) << "it is still read";
  rig.device->streams->finish(&stream);
  EXPECT_TRUE(rig.prepare(2).status().ok());
}

TEST(RankStorePaged, AMarkThatFailsIsTheEndOfAllLeases) {
  DeviceRig rig;
  rig.fill(1);
  const PreparedLoad load = rig.prepare(1);
  rig.device->streams->dead = true;
  EXPECT_EQ(rig.compose(load, rig.three(0)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.prepare(1).status().code(), StatusCode::kUnavailable);
}

TEST(RankStorePaged, StatsAndErasingSpeakOfAllTiers) {
  DeviceRig rig;
  rig.fill(1);
  const KvStoreStats stats = *rig.store->stats();
  ASSERT_EQ(stats.tiers.size(), 3U);
  EXPECT_EQ(stats.tiers[0].name, "gpu");
  EXPECT_EQ(stats.tiers[1].name, "pinned");
  EXPECT_EQ(stats.tiers[2].name, "host");
  EXPECT_EQ(stats.tiers[0].records, 1U);
  const std::optional<PreparedLoad> load = rig.prepare(1);
  const RecordKey keys[] = {key_of(1)};
  const Result<EraseCounts> counts = rig.store->erase(keys);
  EXPECT_EQ(counts->gpu, 1U);
  EXPECT_EQ(counts->host, 1U);
  EXPECT_EQ(counts->leased, 1U);
  EXPECT_EQ(rig.prepare(1).status().code(), StatusCode::kNotFound);
}

TEST(RankStorePaged, ADeviceNeedsRoomForAPage) {
  RankStoreOptions odd = options();
  EXPECT_EQ(open(odd)->attach_device(make_plain_device, 0, 10, 0).code(),
            StatusCode::kInvalidArgument);
  odd.tokens_per_page = 0;
  EXPECT_EQ(open(odd)->attach_device(make_plain_device, 0, 1U << 12, 0).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::testing
