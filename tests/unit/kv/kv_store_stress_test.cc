#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "inferscale/kv_store.h"
#include "unit/kv/files.h"
#include "unit/kv/sample_records.h"
#include "unit/kv/store_fixture.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

constexpr std::uint32_t kItems = 24;
constexpr int kSteps = 400;

/// Puts, acquires and erases at random; every lease must hold the record that was asked for.
void work(KvStore& store, const std::vector<Item>& items, std::uint32_t seed,
          std::atomic<std::uint64_t>& wrong) {
  std::mt19937 random(seed);
  std::vector<Lease> held;
  for (int step = 0; step < kSteps; ++step) {
    const Item& item = items[random() % items.size()];
    const Item& other = items[random() % items.size()];
    switch (random() % 8) {
      case 0:
      case 1:
        wrong += store.put(item.key, item.record()).ok() ? 0 : 1;
        break;
      case 2:
        wrong += store.erase(std::vector<RecordKey>{item.key, other.key}).ok() ? 0 : 1;
        break;
      case 3:
        wrong += random() % 16 != 0 || store.erase_scope(item.meta.scope).ok() ? 0 : 1;
        break;
      case 4:
        held.clear();
        break;
      default: {
        const RecordRequest requests[] = {item.request(), other.request()};
        for (Lease& lease : store.acquire(requests)) {
          if (!lease.ready()) {
            wrong += lease.reason() == MissReason::kAbsent ||
                             lease.reason() == MissReason::kEvicted ||
                             lease.reason() == MissReason::kErased ||
                             lease.reason() == MissReason::kNoRoom
                         ? 0
                         : 1;
            continue;
          }
          held.push_back(std::move(lease));
        }
        if (!held.empty() && !held.back().record()->verify().ok()) {
          ++wrong;
        }
      }
    }
  }
  for (const Lease& lease : held) {
    wrong += lease.record()->verify().ok() ? 0 : 1;
  }
}

TEST(KvStoreStress, ManyThreadsOverHostAndDisk) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 4, 16);
  std::vector<Item> items;
  for (std::uint32_t i = 0; i < kItems; ++i) {
    items.emplace_back(i, static_cast<std::uint8_t>(i % 3));
  }
  std::atomic<std::uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { work(*store, items, t, wrong); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0U);
  const KvStoreStats stats = store->stats();
  EXPECT_EQ(stats.leases_active, 0U);
  EXPECT_EQ(stats.tiers.at(0).corrupt + stats.tiers.at(1).corrupt, 0U);
  EXPECT_LE(stats.tiers.at(0).bytes, stats.tiers.at(0).budget_bytes);
  EXPECT_LE(stats.tiers.at(1).bytes, stats.tiers.at(1).budget_bytes);
  EXPECT_EQ(files_below(directory.path()).size(), stats.tiers.at(1).records);
}

// An erase that has returned is final: readers that raced with it must not have brought the record
// back, in memory or as a lease. One thread erases and checks, the others keep asking.
TEST(KvStoreStress, WhatIsErasedStaysErased) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 1, 100);  // promotes all the time
  const Item item(1), decoy(2);
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!stop) {
        (void)acquire(*store, item);
        (void)acquire(*store, decoy);
      }
    });
  }
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    EXPECT_TRUE(store->put(item.key, item.record()).ok());
    EXPECT_TRUE(store->put(decoy.key, decoy.record()).ok());
    if (round % 2 == 0) {
      EXPECT_TRUE(store->erase({&item.key, 1}).ok());
    } else {
      EXPECT_TRUE(store->erase_scope(item.meta.scope).ok());
    }
    EXPECT_FALSE(store->contains(item.key));
    EXPECT_EQ(acquire(*store, item).reason(), MissReason::kErased);
  }
  stop = true;
  for (std::thread& reader : readers) {
    reader.join();
  }
  EXPECT_FALSE(store->contains(item.key));
  EXPECT_EQ(store->stats().tiers.at(1).corrupt, 0U);
}

}  // namespace
}  // namespace inferscale::testing
