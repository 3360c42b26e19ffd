#include "kv/eviction_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "unit/kv/sample_records.h"

namespace inferscale::testing {
namespace {

using ::testing::ElementsAre;
using Index = EvictionIndex<int>;

std::vector<int> order(const Index& index) {
  std::vector<int> values;
  index.in_eviction_order([&](const Index::Entry& entry) {
    values.push_back(entry.value);
    return true;
  });
  return values;
}

void insert(Index& index, int number, std::uint64_t bytes = 10, double cost = 10) {
  index.insert({key_of(static_cast<std::uint32_t>(number)), bytes, cost, number});
}
RecordKey key(int number) { return key_of(static_cast<std::uint32_t>(number)); }

TEST(EvictionIndex, AtEqualCostTheLeastRecentlyUsedIsFirst) {
  Index index(1000);
  for (const int number : {1, 2, 3, 4}) {
    insert(index, number);
  }
  EXPECT_THAT(order(index), ElementsAre(1, 2, 3, 4));
  ASSERT_NE(index.use(key(2)), nullptr);
  ASSERT_NE(index.use(key(1)), nullptr);
  EXPECT_THAT(order(index), ElementsAre(3, 4, 2, 1));
  ASSERT_NE(index.use(key(2)), nullptr);
  EXPECT_THAT(order(index), ElementsAre(3, 4, 1, 2));
  EXPECT_EQ(index.find(key(9)), nullptr);
  EXPECT_EQ(index.use(key(9)), nullptr);
}

TEST(EvictionIndex, APassOverManyDoesNotDriveOutWhatIsInUse) {
  Index index(50);
  for (const int number : {1, 2, 3}) {
    insert(index, number);
    (void)index.use(key(number));
  }
  for (int number = 100; number < 200; ++number) {  // each seen once, room for seven
    insert(index, number);
    if (index.size() > 7) {
      (void)index.evict(key(order(index).front()));
    }
  }
  for (const int number : {1, 2, 3}) {
    EXPECT_NE(index.find(key(number)), nullptr) << number;
  }
}

TEST(EvictionIndex, TheProtectedSegmentIsBounded) {
  Index index(20);
  for (const int number : {1, 2, 3, 4}) {
    insert(index, number);
  }
  for (const int number : {1, 2, 3}) {
    (void)index.use(key(number));  // room for two: using 3 sends 1 back, behind 4
  }
  EXPECT_THAT(order(index), ElementsAre(4, 1, 2, 3));
  insert(index, 5, 100, 100);
  (void)index.use(key(5));  // larger than the segment: nothing stays protected
  EXPECT_THAT(order(index), ElementsAre(4, 1, 2, 3, 5));
}

TEST(EvictionIndex, WhatIsDearerPerByteStaysLonger) {
  Index index(0);
  insert(index, 1, 10, 40);   // 4 a byte
  insert(index, 2, 100, 40);  // 0.4 a byte
  insert(index, 3, 10, 20);   // 2 a byte
  EXPECT_THAT(order(index), ElementsAre(2, 3, 1));
}

TEST(EvictionIndex, WhatIsDearButUnusedAgesAway) {
  Index index(0);
  insert(index, 1, 10, 100);  // 10 a byte
  int next = 2;
  while (index.find(key(1)) != nullptr && next < 100) {
    insert(index, next++, 10, 10);  // 1 a byte
    if (index.size() > 3) {
      (void)index.evict(key(order(index).front()));
    }
  }
  EXPECT_LT(next, 40) << "never evicted";
  EXPECT_GT(next, 10) << "no dearer than the others";
}

TEST(EvictionIndex, RemovedIsGoneAndSumsStayRight) {
  Index index(35);
  std::mt19937 random(3);
  for (int step = 0; step < 2000; ++step) {
    const int number = static_cast<int>(random() % 20);
    switch (random() % 4) {
      case 0:
        (void)index.use(key(number));
        break;
      case 1:
        (void)index.remove(key(number));
        EXPECT_EQ(index.find(key(number)), nullptr);
        break;
      case 2: {
        const int expected = index.find(key(number)) != nullptr ? number : 0;
        EXPECT_EQ(index.evict(key(number)), expected);
        break;
      }
      default:
        if (index.find(key(number)) == nullptr) {
          insert(index, number, 1 + random() % 30, static_cast<double>(random() % 50));
        }
    }
    std::uint64_t bytes = 0;
    for (const int value : order(index)) {
      bytes += index.find(key(value))->bytes;
    }
    ASSERT_EQ(index.bytes(), bytes);
    ASSERT_EQ(index.size(), order(index).size());
  }
}

TEST(LowWatermark, LeavesWholeRecordsFree) {
  EXPECT_EQ(low_watermark(1600, 10), 1500U);
  EXPECT_EQ(low_watermark(1600, 30), 1510U);   // three of them
  EXPECT_EQ(low_watermark(1600, 200), 1600U);  // none fits a sixteenth
  EXPECT_EQ(low_watermark(0, 10), 0U);
}

}  // namespace
}  // namespace inferscale::testing
