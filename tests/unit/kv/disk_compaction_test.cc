// Space: what erasing, evicting and replacing leaves, and compaction, alone and under load.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "support/fault_injector.h"
#include "support/faulty_file_system.h"
#include "unit/kv/disk_fixture.h"

namespace inferscale::testing {
namespace {

std::size_t segment_files(FileSystem& files) { return all_files(files, kDiskDirectory).size(); }

TEST(DiskCompaction, MovesWhatIsLiveOutOfHalfDeadSegments) {
  MemoryFileSystem memory;
  const auto tier = open_tier(memory, 4);
  for (std::uint32_t number = 0; number < 12; ++number) {
    ASSERT_TRUE(put(*tier, number).ok());
  }
  ASSERT_EQ(segment_files(memory), 3U);
  ASSERT_TRUE(erase(*tier, {0, 2, 4, 6, 8}).ok());
  const TierStats before = tier->stats();
  ASSERT_TRUE(tier->compact().ok());
  const TierStats after = tier->stats();
  EXPECT_EQ(after.compactions, 2U);  // of the third only a quarter is dead
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_LT(after.dead_bytes, before.dead_bytes);
  EXPECT_EQ(after.segments, 2U);
  EXPECT_EQ(segment_files(memory), 2U);
  for (const std::uint32_t number : {1U, 3U, 5U, 7U, 9U, 10U, 11U}) {
    EXPECT_EQ(served(*tier, number), Served::kExact);
    EXPECT_EQ(live_entries(memory, kDiskDirectory, Item(number).key).size(), 1U);
  }
}

TEST(DiskCompaction, KeepsTheOrderOfUse) {
  MemoryFileSystem memory;
  const auto tier = open_tier(memory, 4);
  for (std::uint32_t number = 0; number < 8; ++number) {
    ASSERT_TRUE(put(*tier, number).ok());
  }
  ASSERT_TRUE(erase(*tier, {1, 2}).ok());
  const auto order = tier->keys(std::nullopt);
  ASSERT_TRUE(tier->compact().ok());
  EXPECT_EQ(tier->stats().compactions, 1U);
  EXPECT_EQ(tier->keys(std::nullopt), order);
}

TEST(DiskCompaction, DropsCorruptRecordsInsteadOfMovingThem) {
  MemoryFileSystem memory;
  const auto tier = open_tier(memory, 4);
  for (std::uint32_t number = 0; number < 4; ++number) {
    ASSERT_TRUE(put(*tier, number).ok());
  }
  ASSERT_TRUE(erase(*tier, {0, 1}).ok());
  corrupt_entries(memory, kDiskDirectory, Item(2).key);
  ASSERT_TRUE(tier->compact().ok());
  EXPECT_EQ(served(*tier, 2), Served::kAbsent);
  EXPECT_EQ(served(*tier, 3), Served::kExact);
  EXPECT_EQ(tier->stats().corrupt, 1U);
}

TEST(DiskCompaction, AFullDiskLosesNothing) {
  MemoryFileSystem memory;
  FaultInjector faults;
  FaultyFileSystem files(memory, faults);
  const auto tier = open_tier(files, 4);
  for (std::uint32_t number = 0; number < 4; ++number) {
    ASSERT_TRUE(put(*tier, number).ok());
  }
  ASSERT_TRUE(erase(*tier, {0, 1}).ok());
  faults.arm({.fault = Fault::kNoSpace, .at = 1, .until_healed = true});
  EXPECT_FALSE(tier->compact().ok());
  EXPECT_EQ(served(*tier, 2), Served::kExact);
  faults.heal();
  EXPECT_TRUE(tier->compact().ok());
  EXPECT_EQ(tier->stats().compactions, 1U);
  EXPECT_EQ(served(*tier, 3), Served::kExact);
}

/// A compaction that fails cannot always take its copies back: they must not be taken for good ones
/// by the next attempt.
TEST(DiskCompaction, GoesOnAfterAFailureThatLasted) {
  for (const Fault fault : {Fault::kNoSpace, Fault::kIo, Fault::kShort}) {
    std::uint64_t step = 1;
    for (bool failed = true; failed; ++step) {
      MemoryFileSystem memory;
      FaultInjector faults;
      FaultyFileSystem files(memory, faults);
      const auto tier = open_tier(files, 8);
      for (std::uint32_t number = 0; number < 8; ++number) {
        ASSERT_TRUE(put(*tier, number).ok());
      }
      ASSERT_TRUE(erase(*tier, {0, 1, 2, 3}).ok());
      faults.arm({.fault = fault, .at = step, .until_healed = true});
      failed = !tier->compact().ok();
      faults.heal();
      ASSERT_TRUE(tier->compact().ok()) << "step " << step;
      for (const std::uint32_t number : {4U, 5U, 6U, 7U}) {
        ASSERT_EQ(served(*tier, number), Served::kExact) << "step " << step;
        ASSERT_EQ(live_entries(memory, kDiskDirectory, Item(number).key).size(), 1U);
      }
      ASSERT_EQ(tier->stats().corrupt, 0U);
      ASSERT_TRUE(erase(*tier, {4, 5, 6, 7}).ok());
      for (std::uint32_t number = 0; number < 8; ++number) {
        ASSERT_FALSE(leaves_bytes(memory, number));
      }
    }
    EXPECT_GT(step, 10U);
  }
}

TEST(DiskCompaction, EvictedAndReplacedRecordsLeaveNoByteOnceAnythingIsErased) {
  for (const bool punches : {true, false}) {
    MemoryFileSystem memory;
    memory.set_punches(punches);
    const auto tier = open_tier(memory, 2, 2600);
    std::vector<RecordKey> evicted;
    for (std::uint32_t number = 0; number < 9; ++number) {
      ASSERT_TRUE(tier->put(Item(number).key, Item(number).record(), &evicted).ok());
    }
    ASSERT_FALSE(evicted.empty());
    ASSERT_TRUE(erase(*tier, {100}).ok());  // was never there
    memory.power_cut();
    for (std::uint32_t number = 0; number < evicted.size(); ++number) {
      EXPECT_FALSE(leaves_bytes(memory, number));
    }
  }
}

TEST(DiskCompaction, TheBackgroundSyncsAndCompacts) {
  MemoryFileSystem memory;
  DiskTier::Options options = quiet_options(memory, 4);
  options.background = true;
  options.sync_interval = std::chrono::milliseconds(5);
  const auto tier = std::move(DiskTier::open(kDiskDirectory, 1U << 20, options)).value();
  for (std::uint32_t number = 0; number < 8; ++number) {
    ASSERT_TRUE(put(*tier, number).ok());
  }
  ASSERT_TRUE(erase(*tier, {0, 1, 2}).ok());
  const auto done = [&] {
    const TierStats stats = tier->stats();
    return stats.compactions == 1 && stats.syncs >= 3;
  };
  for (int wait = 0; wait < 2000 && !done(); ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(done());
  EXPECT_EQ(served(*tier, 3), Served::kExact);
}

/// Puts, gets and erases at random while others compact and flush.
TEST(DiskCompaction, GoesOnUnderLoad) {
  constexpr std::uint32_t kItems = 40;
  MemoryFileSystem memory;
  DiskTier::Options options = quiet_options(memory, 4);
  options.background = true;
  options.sync_interval = std::chrono::milliseconds(1);
  options.sync_bytes = 4096;
  const std::uint64_t budget = 16000;  // holds three quarters of the items
  auto tier = std::move(DiskTier::open(kDiskDirectory, budget, options)).value();
  std::atomic<int> wrong{0};
  const auto work = [&](std::uint32_t seed) {
    std::mt19937 random(seed);
    for (int step = 0; step < 400; ++step) {
      const auto number = static_cast<std::uint32_t>(random() % kItems);
      switch (random() % 8) {
        case 0:
        case 1:
          wrong += erase(*tier, {number, (number + 1) % kItems}).ok() ? 0 : 1;
          break;
        case 2:
        case 3:
        case 4:
          wrong += put(*tier, number).code() == StatusCode::kUnavailable ? 1 : 0;
          break;
        default: {
          const Served result = served(*tier, number);
          wrong += result == Served::kExact || result == Served::kAbsent ? 0 : 1;
        }
      }
    }
  };
  const auto maintain = [&] {
    for (int i = 0; i < 60; ++i) {
      wrong += tier->compact().ok() ? 0 : 1;
      wrong += tier->flush().ok() ? 0 : 1;
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back(work, seed);
  }
  threads.emplace_back(maintain);
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  const TierStats stats = tier->stats();
  EXPECT_GT(stats.compactions, 5U);
  EXPECT_EQ(stats.corrupt, 0U);
  EXPECT_LE(stats.bytes + stats.dead_bytes, budget);
  tier.reset();  // its thread may still be removing the files that are read now
  options.background = false;
  tier = std::move(DiskTier::open(kDiskDirectory, budget, options)).value();
  for (const RecordKey& key : tier->keys(std::nullopt)) {
    EXPECT_EQ(live_entries(memory, kDiskDirectory, key).size(), 1U);
  }
  std::vector<std::uint32_t> all;
  for (std::uint32_t number = 0; number < kItems; ++number) {
    all.push_back(number);
  }
  ASSERT_TRUE(erase(*tier, all).ok());
  for (const std::uint32_t number : all) {
    EXPECT_FALSE(leaves_bytes(memory, number));
  }
}

}  // namespace
}  // namespace inferscale::testing
