#include "kv/device_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/transcode.h"
#include "unit/kv/page_fixture.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

using ::testing::ElementsAre;

int stream = 0;

/// A store of memory, or of memory and disk, behind a device.
struct StoreRig {
  StoreRig(std::size_t gpu_pages, std::size_t pinned_pages,
           std::unique_ptr<KvStore> below_in = open_memory_store(64))
      : device(std::make_shared<FakeDevice>(item_layout(), gpu_pages, pinned_pages)),
        below(below_in.get()),
        store(std::move(DeviceStore::create(std::move(below_in), device)).value()) {}

  PageLease acquire(const Item& item) {
    const RecordRequest request = item.request();
    return std::move(store->acquire_pages({&request, 1}).front());
  }
  MissReason reason(const Item& item) { return acquire(item).reason(); }
  /// Where a lease of the item finds it; empty when there is none.
  std::string served_from(const Item& item) {
    const PageLease lease = acquire(item);
    EXPECT_TRUE(!lease.ready() || holds(lease, item));
    return lease.ready() ? std::string(lease.tier()->name()) : "";
  }
  void use(const PageLease& lease) {
    device->streams->read(&stream, lease.addresses());
    const PageLease* const leases[] = {&lease};
    EXPECT_TRUE(store->streams()->note_use(leases, &stream).ok());
  }
  TierStats tier(const std::string& name) const {
    for (const TierStats& stats : store->stats().tiers) {
      if (stats.name == name) {
        return stats;
      }
    }
    return {};
  }
  Result<EraseCounts> erase(const Item& item) { return store->erase({&item.key, 1}); }

  std::shared_ptr<FakeDevice> device;
  KvStore* below;
  std::unique_ptr<DeviceStore> store;
};

/// Items that the store below has and no tier of the device.
std::vector<Item> put_below(StoreRig& rig, std::uint32_t count) {
  return put_items(*rig.below, count);
}

TEST(DeviceStore, ARecordComesUpByUse) {
  StoreRig rig(1, 4);
  const std::vector<Item> items = put_below(rig, 2);
  EXPECT_EQ(rig.served_from(items[0]), "pinned");  // read where it is, while it is copied on
  EXPECT_EQ(rig.tier("gpu").records, 1U);
  EXPECT_EQ(rig.served_from(items[0]), "gpu");
  EXPECT_EQ(rig.served_from(items[1]), "pinned");  // the gpu tier is full: nothing gives way for
  EXPECT_EQ(rig.served_from(items[0]), "gpu");     // what was used once
  EXPECT_EQ(rig.served_from(items[1]), "pinned");
  EXPECT_EQ(rig.served_from(items[1]), "gpu");
  EXPECT_EQ(rig.served_from(items[0]), "pinned") << "its copy there is still in place";
  EXPECT_EQ(rig.tier("gpu").evictions, 2U);
  EXPECT_EQ(rig.store->stats().promotions, 5U);
}

TEST(DeviceStore, EitherTierMayBeAbsent) {
  StoreRig gpu(2, 0), pinned(0, 2);
  const std::vector<Item> a = put_below(gpu, 3), b = put_below(pinned, 3);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(gpu.served_from(a[i]), "gpu");
    EXPECT_EQ(pinned.served_from(b[i]), "pinned");
  }
  EXPECT_EQ(gpu.store->stats().tiers.size(), 2U);
  EXPECT_EQ(
      DeviceStore::create(open_memory_store(1), std::make_shared<FakeDevice>(item_layout(), 0, 0))
          .status()
          .code(),
      StatusCode::kInvalidArgument);
}

TEST(DeviceStore, WhatIsPutIsDurableAndInPagesAtOnce) {
  const TempDirectory directory;
  const Item a(1), b(2), c(3);
  {
    StoreRig rig(1, 1, open_disk_store(directory.path(), 4, 16));
    ASSERT_TRUE(rig.store->put(a.key, a.record()).ok());
    ASSERT_TRUE(rig.store->put(b.key, b.record()).ok());
    EXPECT_EQ(rig.tier("gpu").records, 1U);
    EXPECT_EQ(rig.tier("pinned").records, 1U);
    EXPECT_EQ(rig.served_from(a), "gpu");
    EXPECT_EQ(rig.served_from(b), "pinned");
    ASSERT_TRUE(rig.store->put(c.key, c.record()).ok());
    EXPECT_EQ(rig.tier("disk").records, 3U);
    ASSERT_TRUE(rig.store->flush().ok());
  }
  StoreRig rig(1, 1, open_disk_store(directory.path(), 4, 16));
  EXPECT_EQ(rig.tier("pinned").records, 0U);
  for (const Item* item : {&a, &b, &c}) {
    EXPECT_NE(rig.served_from(*item), "");
  }
}

TEST(DeviceStore, ReplacingLeavesNoOldPages) {
  StoreRig rig(2, 2);
  const std::vector<Item> items = put_below(rig, 1);
  EXPECT_EQ(rig.served_from(items[0]), "pinned");
  ASSERT_TRUE(rig.store->put(items[0].key, items[0].record()).ok());
  EXPECT_EQ(rig.tier("pinned").records, 0U);
  EXPECT_EQ(rig.served_from(items[0]), "gpu");
  rig.device->gpu_memory->fail_write = true;
  rig.device->pinned_memory->fail_write = true;
  ASSERT_TRUE(rig.store->put(items[0].key, items[0].record()).ok()) << "it is in the store below";
  EXPECT_EQ(rig.tier("gpu").records, 0U);
  EXPECT_EQ(rig.served_from(items[0]), "pinned");
}

TEST(DeviceStore, MissesSayWhy) {
  StoreRig rig(1, 1);
  const std::vector<Item> items = put_below(rig, 2);
  const Item absent(50);
  EXPECT_EQ(rig.reason(absent), MissReason::kAbsent);
  Item other(60);
  other.options.shape.n_layers += 1;
  ASSERT_TRUE(rig.store->put(other.key, other.record()).ok());
  EXPECT_EQ(rig.reason(other), MissReason::kWrongModel) << "of another shape than the pages";
  Item wrong = items[0];
  wrong.tokens[1] ^= 1;
  EXPECT_EQ(rig.reason(wrong), MissReason::kWrongTokens) << "from the store below";
  const PageLease pinned = rig.acquire(items[0]), gpu = rig.acquire(items[0]);
  ASSERT_TRUE(pinned.ready() && gpu.ready());
  ASSERT_NE(pinned.tier(), gpu.tier());
  EXPECT_EQ(rig.reason(wrong), MissReason::kWrongTokens) << "from the tiers";
  EXPECT_EQ(rig.reason(items[1]), MissReason::kNoDeviceRoom);
  const auto misses = [&](MissReason reason) {
    return rig.store->stats().misses_by_reason[static_cast<std::size_t>(reason)];
  };
  EXPECT_EQ(misses(MissReason::kAbsent), 1U);
  EXPECT_EQ(misses(MissReason::kWrongModel), 1U);
  EXPECT_EQ(misses(MissReason::kWrongTokens), 2U);
  EXPECT_EQ(misses(MissReason::kNoDeviceRoom), 1U);
  EXPECT_EQ(rig.store->stats().leases_active, 2U);
}

TEST(DeviceStore, RecordsOfAnotherCodecAreTranscodedOnTheirWayUp) {
  for (const KvCodec codec :
       {KvCodec::kF32, KvCodec::kBf16, KvCodec::kQ8, KvCodec::kFp8E4m3, KvCodec::kQ4}) {
    StoreRig rig(2, 2);
    Item item(60);
    item.options.codec = codec;
    const auto record = item.record();
    ASSERT_TRUE(rig.store->put(item.key, record).ok());
    const PageLease lease = rig.acquire(item);
    ASSERT_TRUE(lease.ready());
    EXPECT_EQ(lease.meta().codec, item_layout().codec);
    const auto wanted = std::move(transcode_record(*record, item_layout().codec)).value();
    std::vector<std::byte> page(item_layout().page_bytes());
    record_to_page(item_layout(), *wanted, 0, page);
    EXPECT_TRUE(same_bytes(page, {lease.addresses()[0], page.size()})) << codec_name(codec);
    const std::vector<Lease> below = rig.store->acquire(std::vector{item.request()});
    EXPECT_TRUE(same_bytes(below[0].record()->bytes(), record->bytes())) << "it stays as it was";
  }
}

TEST(DeviceStore, ADamagedRecordBelowGivesNoPages) {
  StoreRig rig(2, 2);
  const Item item(1);
  const auto record = item.record();
  ASSERT_TRUE(rig.below->put(item.key, record).ok());
  *const_cast<std::byte*>(record->layer_k(0)) ^= std::byte{1};
  EXPECT_EQ(rig.reason(item), MissReason::kChecksum);
  EXPECT_EQ(rig.tier("pinned").records, 0U);
}

TEST(DeviceStore, AnEraseTakesEveryCopyAndSaysSo) {
  StoreRig rig(4, 4);
  const std::vector<Item> items = put_below(rig, 3);
  for (int i = 0; i < 2; ++i) {
    (void)rig.served_from(items[0]);
    (void)rig.served_from(items[1]);
  }
  std::optional<PageLease> lease = rig.acquire(items[0]);
  { rig.use(rig.acquire(items[1])); }
  const RecordKey keys[] = {items[0].key, items[1].key};
  const Result<EraseCounts> counts = rig.store->erase(keys);
  ASSERT_TRUE(counts.ok()) << counts.status().to_string();
  EXPECT_EQ(counts->gpu, 2U);
  EXPECT_EQ(counts->pinned, 2U);
  EXPECT_EQ(counts->host, 2U);
  EXPECT_EQ(counts->leased, 1U) << "the other is only read, which the erase waited for";
  EXPECT_EQ(rig.reason(items[0]), MissReason::kErased);
  EXPECT_FALSE(rig.store->contains(items[1].key));
  EXPECT_TRUE(holds(*lease, items[0]));
  EXPECT_THAT(rig.store->keys(), ElementsAre(items[2].key));
  lease.reset();
  EXPECT_EQ(rig.tier("gpu").dead_bytes + rig.tier("pinned").dead_bytes, 0U);
  for (const auto& memory : {rig.device->gpu_memory, rig.device->pinned_memory}) {
    EXPECT_EQ(memory->violations, 0U);
    for (std::uint32_t page = 0; page < memory->n_pages(); ++page) {
      EXPECT_TRUE(memory->is_zero(page));
    }
  }
}

TEST(DeviceStore, AnEraseOfAScopeFindsWhatOnlyPagesHave) {
  StoreRig rig(4, 4);
  const Item mine(1, 0xAA), other(2, 0xBB);
  for (const Item* item : {&mine, &other}) {
    ASSERT_TRUE(rig.store->put(item->key, item->record()).ok());
    ASSERT_TRUE(rig.below->erase({&item->key, 1}).ok());  // as when it had given way there
  }
  EXPECT_TRUE(rig.store->contains(mine.key));
  const Result<EraseCounts> counts = rig.store->erase_scope(hash_of(0xAA));
  EXPECT_EQ(counts->gpu, 1U);
  EXPECT_EQ(counts->host, 0U);
  EXPECT_FALSE(rig.store->contains(mine.key));
  EXPECT_EQ(rig.served_from(other), "gpu");
}

TEST(DeviceStore, WhatCannotBeZeroedIsNoReceipt) {
  StoreRig rig(2, 2);
  const Item item(1);
  ASSERT_TRUE(rig.store->put(item.key, item.record()).ok());
  rig.device->gpu_memory->fail_zero = true;
  EXPECT_EQ(rig.erase(item).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.reason(item), MissReason::kErased);
  EXPECT_THAT(rig.store->keys(), ElementsAre(item.key));
  rig.device->gpu_memory->fail_zero = false;
  EXPECT_TRUE(rig.erase(item).ok());
  EXPECT_TRUE(rig.store->keys().empty());
}

TEST(DeviceStore, InspectingReadsEveryCopy) {
  StoreRig rig(2, 2);
  const std::vector<Item> items = put_below(rig, 1);
  const PageLease lease = rig.acquire(items[0]);
  auto record = rig.store->inspect(items[0].key);
  ASSERT_TRUE(record.ok());
  EXPECT_TRUE(same_bytes((*record)->bytes(), items[0].record()->bytes()));
  *const_cast<std::byte*>(lease.addresses()[0]) ^= std::byte{1};
  EXPECT_EQ(rig.store->inspect(items[0].key).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(rig.store->inspect(items[0].key).ok()) << "the damaged copy is dropped";
}

TEST(DeviceStore, AFailedTierIsPassedOver) {
  StoreRig rig(2, 2);
  const std::vector<Item> items = put_below(rig, 2);
  EXPECT_EQ(rig.served_from(items[0]), "pinned");
  rig.device->gpu_memory->fail_publish = true;
  EXPECT_EQ(rig.store->streams()->publish(&stream).code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.served_from(items[0]), "pinned");
  EXPECT_EQ(rig.served_from(items[1]), "pinned");
  rig.device->pinned_memory->fail_publish = true;
  EXPECT_EQ(rig.store->streams()->publish(&stream).code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.reason(items[0]), MissReason::kDeviceFailed);
  EXPECT_EQ(rig.reason(Item(50)), MissReason::kAbsent) << "it is not the device's fault";
  EXPECT_TRUE(acquire(*rig.store, items[0]).ready()) << "the store below goes on";
  EXPECT_TRUE(rig.erase(items[0]).ok());
}

TEST(DeviceStore, AFullStagingRingKeepsTheRecordInPinnedPages) {
  StoreRig rig(2, 2);
  const std::vector<Item> items = put_below(rig, 1);
  rig.device->gpu_memory->fail_copy = true;
  EXPECT_EQ(rig.served_from(items[0]), "pinned");
  EXPECT_EQ(rig.tier("gpu").records, 0U);
  EXPECT_EQ(rig.served_from(items[0]), "pinned");
  EXPECT_EQ(rig.served_from(items[0]), "gpu");
}

}  // namespace
}  // namespace inferscale::testing
