// Which record is loaded, kept and written when there is not room or time for all.
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "unit/kv/files.h"
#include "unit/kv/store_fixture.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

namespace fs = std::filesystem;

TEST(KvStorePolicy, LeasesNeverExceedTheHostBudget) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 2, 100);
  const std::vector<Item> items = put_items(*store, 5);
  std::vector<RecordRequest> requests;
  for (const Item& item : items) {
    requests.push_back(item.request());
  }
  std::vector<Lease> leases = store->acquire(requests);
  std::size_t ready = 0;
  for (const Lease& lease : leases) {
    ready += lease.ready() ? 1 : 0;
    if (!lease.ready()) {
      EXPECT_EQ(lease.reason(), MissReason::kNoRoom);
    }
  }
  EXPECT_EQ(ready, 2U);
  EXPECT_EQ(misses(*store, MissReason::kNoRoom), 3U);
  leases.clear();
  for (const Item& item : items) {  // one at a time there is room for each
    EXPECT_TRUE(acquire(*store, item).ready());
  }
}

TEST(KvStorePolicy, ARecordThatLoadsSlowerThanItsTokensPrefillIsNotLoaded) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 1, 100);
  const std::vector<Item> items = put_items(*store, 2);  // 0 is on disk alone
  RecordRequest request = items[0].request();
  request.prefill_us = 1e-9;
  EXPECT_TRUE(acquire(*store, request).ready()) << "nothing was measured yet";
  EXPECT_TRUE(acquire(*store, items[1]).ready());  // 0 leaves the host tier
  std::size_t loaded = 0;
  for (int i = 0; i < 16; ++i) {
    const Lease lease = acquire(*store, request);
    loaded += lease.ready() ? 1 : 0;
    if (!lease.ready()) {
      ASSERT_EQ(lease.reason(), MissReason::kSlowLoad);
    }
  }
  EXPECT_EQ(loaded, 1U) << "the sixteenth measures again";
  EXPECT_EQ(misses(*store, MissReason::kSlowLoad), 15U);
  EXPECT_TRUE(acquire(*store, request).ready()) << "what is in memory needs no loading";
  EXPECT_TRUE(acquire(*store, items[1]).ready());
  request.prefill_us = 1e9;
  EXPECT_TRUE(acquire(*store, request).ready());
}

TEST(KvStorePolicy, WhatTheDiskRefusedIsWrittenWhenItTakesRecordsAgain) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "kv";
  std::vector<Item> items;
  for (std::uint32_t i = 0; i < 4; ++i) {
    items.emplace_back(i);
  }
  {
    const auto store = open_disk_store(path, 10, 100);
    fs::remove_all(path);
    write_bytes(path, std::vector<std::byte>(1));  // not a directory: nothing can be written there
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(store->put(items[i].key, items[i].record()).code(), StatusCode::kUnavailable);
    }
    ASSERT_TRUE(store->erase({&items[1].key, 1}).ok());
    fs::remove(path);
    EXPECT_TRUE(store->put(items[3].key, items[3].record()).ok());
    EXPECT_EQ(store->stats().written_later, 2U);
    EXPECT_EQ(store->stats().tiers.at(1).records, 3U);
  }
  const auto store = open_disk_store(path, 10, 100);
  EXPECT_TRUE(acquire(*store, items[0]).ready());
  EXPECT_FALSE(acquire(*store, items[1]).ready()) << "erased meanwhile";
  EXPECT_TRUE(acquire(*store, items[2]).ready());
  EXPECT_TRUE(acquire(*store, items[3]).ready());
}

TEST(KvStorePolicy, PromotionsAreCounted) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 2, 100);
  const std::vector<Item> items = put_items(*store, 3);
  EXPECT_EQ(store->stats().promotions, 0U);
  EXPECT_TRUE(acquire(*store, items[0]).ready());
  EXPECT_TRUE(acquire(*store, items[0]).ready());
  EXPECT_EQ(store->stats().promotions, 1U);
}

}  // namespace
}  // namespace inferscale::testing
