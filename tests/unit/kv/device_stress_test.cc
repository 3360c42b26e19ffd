#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kv/device_store.h"
#include "unit/kv/page_fixture.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

constexpr std::uint32_t kItems = 24;
constexpr int kSteps = 400;

/// A stream that does its work later, in a thread of its own: it reads pages long after the leases
/// have been released, and finds out whether they still hold what they were leased for.
class LateStream {
 public:
  explicit LateStream(FakeDevice& device) : device_(device), thread_([this] { run(); }) {}
  ~LateStream() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wakes_.notify_all();
    thread_.join();
  }

  /// What RankStore::compose_paged does.
  void compose(DeviceStore& store, const PageLease& lease, const Item& item) {
    std::vector<std::byte> expected;
    const auto record = item.record();
    std::vector<std::byte> page(item_layout().page_bytes());
    for (std::size_t i = 0; i < lease.addresses().size(); ++i) {
      record_to_page(item_layout(), *record, i, page);
      expected.insert(expected.end(), page.begin(), page.end());
    }
    const std::lock_guard lock(mutex_);
    wrong += store.streams()->publish(this).ok() ? 0 : 1;
    device_.streams->read(this, lease.addresses());
    queue_.push_back({{lease.addresses().begin(), lease.addresses().end()}, std::move(expected)});
    const PageLease* const leases[] = {&lease};
    wrong += store.streams()->note_use(leases, this).ok() ? 0 : 1;
    wakes_.notify_all();
  }

  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> done{0};

 private:
  struct Work {
    std::vector<const std::byte*> addresses;
    std::vector<std::byte> expected;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      // Late, but in the end without being asked to: an erase waits for it.
      wakes_.wait_for(lock, std::chrono::milliseconds(1),
                      [&] { return stop_ || queue_.size() > 4; });
      while (!queue_.empty()) {
        const Work& work = queue_.front();
        for (std::size_t i = 0; i < work.addresses.size(); ++i) {
          const std::size_t size = item_layout().page_bytes();
          wrong += same_bytes({work.addresses[i], size},
                              std::span(work.expected).subspan(i * size, size))
                       ? 0
                       : 1;
        }
        ++done;
        queue_.pop_front();
      }
      device_.streams->finish(this);
      if (stop_) {
        return;
      }
    }
  }

  FakeDevice& device_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<Work> queue_;
  bool stop_ = false;
  std::thread thread_;
};

void work(DeviceStore& store, LateStream& stream, const std::vector<Item>& items,
          std::uint32_t seed, std::atomic<std::uint64_t>& wrong) {
  std::mt19937 random(seed);
  std::vector<PageLease> held;
  for (int step = 0; step < kSteps; ++step) {
    const Item& item = items[random() % items.size()];
    const Item& other = items[random() % items.size()];
    switch (random() % 16) {
      case 0:
      case 1:
        wrong += store.put(item.key, item.record()).ok() ? 0 : 1;
        break;
      case 2:
        wrong += store.erase(std::vector<RecordKey>{item.key, other.key}).ok() ? 0 : 1;
        break;
      case 3:
        wrong += random() % 8 != 0 || store.erase_scope(item.meta.scope).ok() ? 0 : 1;
        break;
      case 4:
        held.clear();
        break;
      case 5:
        (void)store.stats();
        (void)store.keys();
        wrong += store.inspect(item.key).ok() ? 0 : 1;
        break;
      default: {
        const RecordRequest requests[] = {item.request(), other.request()};
        std::vector<PageLease> leases = store.acquire_pages(requests);
        for (std::size_t i = 0; i < leases.size(); ++i) {
          const Item& wanted = i == 0 ? item : other;
          if (!leases[i].ready()) {
            const MissReason reason = leases[i].reason();
            wrong += reason == MissReason::kAbsent || reason == MissReason::kEvicted ||
                             reason == MissReason::kErased || reason == MissReason::kNoRoom ||
                             reason == MissReason::kNoDeviceRoom
                         ? 0
                         : 1;
            continue;
          }
          wrong += holds(leases[i], wanted) ? 0 : 1;
          stream.compose(store, leases[i], wanted);
          if (random() % 4 == 0) {
            held.push_back(std::move(leases[i]));
          }
        }
      }
    }
  }
}

TEST(DeviceStress, ManyThreadsAndALateStream) {
  const TempDirectory directory;
  const auto device = std::make_shared<FakeDevice>(item_layout(), 6, 10);
  device->gpu_memory->slow_copies = true;
  device->streams->blocking = true;
  std::atomic<std::uint64_t> wrong{0};
  std::uint64_t done = 0;
  {
    const auto store =
        std::move(DeviceStore::create(open_disk_store(directory.path(), 4, 16), device)).value();
    LateStream stream(*device);
    std::vector<Item> items;
    for (std::uint32_t i = 0; i < kItems; ++i) {
      items.emplace_back(i, static_cast<std::uint8_t>(i % 3));
    }
    std::atomic<bool> stop{false};
    std::thread copies([&] {  // the stream of the device's memory goes on, too
      while (!stop) {
        device->streams->finish(device->gpu_memory->copy_stream());
        std::this_thread::yield();
      }
    });
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] { work(*store, stream, items, t, wrong); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    wrong += stream.wrong;
    std::vector<RecordKey> keys;
    for (const Item& item : items) {
      keys.push_back(item.key);
    }
    EXPECT_TRUE(store->erase(keys).ok());  // waits for what the streams still read
    stop = true;
    copies.join();
    const KvStoreStats stats = store->stats();
    EXPECT_EQ(stats.leases_active, 0U);
    for (const TierStats& tier : stats.tiers) {
      EXPECT_LE(tier.bytes, tier.budget_bytes);
      EXPECT_EQ(tier.corrupt, 0U);
      EXPECT_EQ(tier.degraded, "");
    }
    EXPECT_EQ(stats.tiers.at(0).bytes + stats.tiers.at(1).bytes, 0U);
    EXPECT_EQ(stats.tiers.at(0).dead_bytes + stats.tiers.at(1).dead_bytes, 0U);
    done = stream.done;
  }
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(done, 100U);
  for (const auto& memory : {device->gpu_memory, device->pinned_memory}) {
    EXPECT_EQ(memory->violations, 0U);
    for (std::uint32_t page = 0; page < memory->n_pages(); ++page) {
      EXPECT_TRUE(memory->is_zero(page)) << memory->name() << " page " << page;
    }
  }
}

// As KvStoreStress.WhatIsErasedStaysErased: readers that race with an erase must not have brought
// the record back, in any tier.
TEST(DeviceStress, WhatIsErasedStaysErased) {
  const auto device = std::make_shared<FakeDevice>(item_layout(), 1, 2);
  device->streams->immediate = true;
  const auto store = std::move(DeviceStore::create(open_memory_store(8), device)).value();
  const Item item(1), decoy(2), third(3);
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!stop) {
        const RecordRequest requests[] = {item.request(), decoy.request(), third.request()};
        (void)store->acquire_pages(requests);
        std::this_thread::yield();
      }
    });
  }
  for (int round = 0; round < 200 && !::testing::Test::HasFailure(); ++round) {
    for (const Item* each : {&item, &decoy, &third}) {
      EXPECT_TRUE(store->put(each->key, each->record()).ok());
    }
    if (round % 2 == 0) {
      EXPECT_TRUE(store->erase({&item.key, 1}).ok());
    } else {
      EXPECT_TRUE(store->erase_scope(item.meta.scope).ok());
    }
    EXPECT_FALSE(store->contains(item.key));
    const RecordRequest request = item.request();
    EXPECT_EQ(store->acquire_pages({&request, 1}).front().reason(), MissReason::kErased);
  }
  stop = true;
  for (std::thread& reader : readers) {
    reader.join();
  }
  EXPECT_FALSE(store->contains(item.key));
}

}  // namespace
}  // namespace inferscale::testing
