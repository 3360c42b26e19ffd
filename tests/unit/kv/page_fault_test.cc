#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/page_tier.h"
#include "unit/kv/page_fixture.h"

namespace inferscale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

int stream = 0;

TEST(PageFault, AHalfWrittenRecordIsNotServed) {
  PageRig rig(4);
  const Item before = long_item(1, 6), item = long_item(2, 6);
  ASSERT_TRUE(rig.put(before).ok());
  rig.memory->fail_write = true;
  EXPECT_EQ(rig.put(item).code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.acquire(item).reason(), MissReason::kAbsent);
  EXPECT_FALSE(rig.tier->contains(item.key));
  EXPECT_NE(rig.tier->stats().degraded, "");
  EXPECT_EQ(rig.tier->stats().dead_bytes, 0U) << "its pages were zeroed and are free";
  EXPECT_TRUE(rig.serves(before));
  ASSERT_TRUE(rig.put(item).ok());
  EXPECT_TRUE(rig.serves(item));
  EXPECT_EQ(rig.tier->stats().degraded, "") << "the last record could be written";
}

TEST(PageFault, ARecordThatFailsToReplaceAnotherLeavesNeither) {
  PageRig rig(1);
  const Item item(1);
  ASSERT_TRUE(rig.put(item).ok());
  rig.memory->fail_write = true;
  EXPECT_EQ(rig.put(item).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(rig.tier->contains(item.key));
  rig.expect_all_free();
}

TEST(PageFault, WithoutStagingMemoryNothingChanges) {
  PageRig rig(1);
  const Item item(1), next(2);
  rig.memory->no_staging = true;
  EXPECT_EQ(rig.put(item).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(rig.tier->stats().degraded, "");
  rig.expect_all_free();
  EXPECT_TRUE(rig.put(next).ok());
}

TEST(PageFault, AFailedCopyIsNotServed) {
  PageRig from(2), to(2);
  const Item item = long_item(1, 8);
  ASSERT_TRUE(from.put(item).ok());
  to.memory->fail_copy = true;
  EXPECT_EQ(to.tier->put_copy(from.acquire(item), PageTier::Room::kEvict, &to.evicted).code(),
            StatusCode::kUnavailable);
  to.expect_all_free();
  EXPECT_TRUE(from.serves(item));
}

TEST(PageFault, WhatCannotBeZeroedIsNeverUsedAndErasedLater) {
  PageRig rig(2);
  const Item item(1), a(2), b(3);
  ASSERT_TRUE(rig.put(item).ok());
  rig.memory->fail_zero = true;
  EXPECT_EQ(rig.erase({item.key}).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(rig.acquire(item).ready());
  EXPECT_THAT(rig.tier->keys(std::nullopt), ElementsAre(item.key)) << "its bytes are still there";
  EXPECT_NE(rig.tier->stats().degraded, "");
  ASSERT_TRUE(rig.put(a).ok());
  EXPECT_EQ(rig.put(b, PageTier::Room::kFreeOnly).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(rig.tier->stats().dead_bytes, item_layout().page_bytes());
  EXPECT_EQ(rig.erase({item.key}).code(), StatusCode::kUnavailable);
  rig.memory->fail_zero = false;
  EXPECT_TRUE(rig.erase({item.key}).ok());
  EXPECT_EQ(rig.removed, 0U);
  EXPECT_THAT(rig.tier->keys(std::nullopt), ElementsAre(a.key));
  EXPECT_EQ(rig.tier->stats().dead_bytes, 0U);
  ASSERT_TRUE(rig.put(b, PageTier::Room::kFreeOnly).ok());
  EXPECT_TRUE(rig.serves(a) && rig.serves(b));
}

TEST(PageFault, WhatCouldNotBeZeroedIsTriedAgainWithTheNextRecord) {
  PageRig rig(1);
  const Item item(1), next(2);
  ASSERT_TRUE(rig.put(item).ok());
  rig.memory->fail_zero = true;
  EXPECT_FALSE(rig.erase({item.key}).ok());
  EXPECT_EQ(rig.put(next).code(), StatusCode::kResourceExhausted);
  rig.memory->fail_zero = false;
  EXPECT_TRUE(rig.put(next).ok());
  EXPECT_TRUE(rig.serves(next));
}

// A write that failed after it was accepted: nobody can tell which record it was.
TEST(PageFault, AFailureToPublishTakesEverything) {
  PageRig rig(4);
  const Item a(1), b(2);
  ASSERT_TRUE(rig.put(a).ok());
  ASSERT_TRUE(rig.put(b).ok());
  std::optional<PageLease> lease = rig.acquire(a);
  EXPECT_TRUE(rig.tier->publish(&stream).ok());
  rig.memory->fail_publish = true;
  EXPECT_EQ(rig.tier->publish(&stream).code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.acquire(a).reason(), MissReason::kDeviceFailed);
  EXPECT_EQ(rig.acquire(b).reason(), MissReason::kDeviceFailed);
  EXPECT_EQ(rig.put(a).code(), StatusCode::kUnavailable);
  EXPECT_NE(rig.tier->stats().degraded, "");
  EXPECT_EQ(rig.tier->stats().records, 0U);
  EXPECT_THAT(rig.tier->keys(std::nullopt), IsEmpty());
  lease.reset();
  rig.expect_all_free();
}

TEST(PageFault, AFailureToSettleIsNoReceipt) {
  PageRig rig(2);
  const Item a(1), b(2);
  ASSERT_TRUE(rig.put(a).ok());
  ASSERT_TRUE(rig.put(b).ok());
  rig.memory->fail_settle = true;
  EXPECT_EQ(rig.erase({a.key}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.acquire(a).reason(), MissReason::kDeviceFailed);
  EXPECT_EQ(rig.acquire(b).reason(), MissReason::kDeviceFailed);
}

TEST(PageFault, ADeadDeviceEndsEverythingAndHangsNothing) {
  PageRig rig(4);
  const Item used(1), unused(2);
  ASSERT_TRUE(rig.put(used).ok());
  ASSERT_TRUE(rig.put(unused).ok());
  { rig.use(rig.acquire(used), &stream); }
  rig.clock->dead = true;
  EXPECT_TRUE(rig.erase({used.key}).ok()) << "a dead device reads nothing: it could be zeroed";
  EXPECT_EQ(rig.acquire(unused).reason(), MissReason::kDeviceFailed);
  EXPECT_EQ(rig.put(used).code(), StatusCode::kUnavailable);
  rig.tier.reset();
}

TEST(PageFault, DamagedPagesAreFoundAndDropped) {
  PageRig rig(4);
  const Item item = long_item(1, 7);
  ASSERT_TRUE(rig.put(item).ok());
  {
    const PageLease lease = rig.acquire(item);
    *const_cast<std::byte*>(lease.addresses()[1]) ^= std::byte{1};
  }
  EXPECT_EQ(rig.tier->inspect(item.key).status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(rig.tier->contains(item.key));
  EXPECT_EQ(rig.tier->stats().corrupt, 1U);
  rig.expect_all_free();
}

}  // namespace
}  // namespace inferscale::testing
