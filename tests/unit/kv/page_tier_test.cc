#include "kv/page_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "unit/kv/page_fixture.h"

namespace inferscale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

int stream_one = 0;
int stream_two = 0;

TEST(PageTier, EveryFieldOfARequestIsChecked) {
  PageRig rig(4);
  const Item item(1), other(2);
  ASSERT_TRUE(rig.put(item).ok());
  const auto reason = [&](auto change) {
    RecordRequest request = item.request();
    change(request);
    const PageLease lease = rig.tier->acquire(request);
    EXPECT_EQ(lease.ready(), lease.reason() == MissReason::kNone);
    return lease.reason();
  };
  EXPECT_EQ(reason([](RecordRequest&) {}), MissReason::kNone);
  EXPECT_EQ(reason([&](RecordRequest& r) { r.key = other.key; }), MissReason::kAbsent);
  EXPECT_EQ(reason([](RecordRequest& r) { r.model_fingerprint = hash_of(1); }),
            MissReason::kWrongModel);
  EXPECT_EQ(reason([](RecordRequest& r) { r.shape.n_layers = 3; }), MissReason::kWrongModel);
  EXPECT_EQ(reason([](RecordRequest& r) { r.scope = hash_of(1); }), MissReason::kWrongScope);
  EXPECT_EQ(reason([&](RecordRequest& r) { r.token_ids = other.tokens; }),
            MissReason::kWrongTokens);
  EXPECT_EQ(reason([](RecordRequest& r) { r.context_id = hash_of(1); }), MissReason::kWrongContext);
  EXPECT_EQ(reason([](RecordRequest& r) {
              r.context_id = hash_of(1);
              r.any_context = true;
            }),
            MissReason::kNone);
}

TEST(PageTier, LeasesPagesOfAllLengths) {
  PageRig rig(8);
  for (const std::uint32_t n_tokens : {1U, 4U, 5U, 12U, 32U}) {
    const Item item = long_item(n_tokens, n_tokens);
    ASSERT_TRUE(rig.put(item).ok());
    EXPECT_TRUE(rig.serves(item)) << n_tokens;
  }
  const Item huge = long_item(99, 33);
  EXPECT_EQ(rig.put(huge).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(rig.serves(long_item(32, 32))) << "nothing gave way to what cannot fit";
}

TEST(PageTier, RefusesWhatPagesCannotHold) {
  PageRig rig(4);
  Item wide(1);
  wide.options.codec = KvCodec::kF32;
  EXPECT_EQ(rig.put(wide).code(), StatusCode::kInvalidArgument);
  rig.expect_all_free();
}

TEST(PageTier, WhatIsLeasedDoesNotGiveWay) {
  PageRig rig(2);
  const Item a(1), b(2), c(3);
  ASSERT_TRUE(rig.put(a).ok());
  ASSERT_TRUE(rig.put(b).ok());
  std::optional<PageLease> lease_a = rig.acquire(a);
  const PageLease lease_b = rig.acquire(b);
  EXPECT_EQ(rig.tier->leases_active(), 2U);
  EXPECT_EQ(rig.put(c).code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(rig.evicted, IsEmpty());
  lease_a.reset();
  EXPECT_EQ(rig.put(c, PageTier::Room::kFreeOnly).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(rig.put(c).ok());
  EXPECT_THAT(rig.evicted, ElementsAre(a.key));
  EXPECT_TRUE(holds(lease_b, b));
  EXPECT_TRUE(rig.serves(c));
}

TEST(PageTier, WhatAStreamStillReadsDoesNotGiveWay) {
  PageRig rig(1);
  const Item a(1), b(2);
  ASSERT_TRUE(rig.put(a).ok());
  {
    const PageLease lease = rig.acquire(a);
    rig.use(lease, &stream_one);
    rig.use(lease, &stream_two);
    rig.use(lease, &stream_one);
  }
  EXPECT_EQ(rig.put(b).code(), StatusCode::kResourceExhausted);
  rig.clock->finish(&stream_one);
  EXPECT_EQ(rig.put(b).code(), StatusCode::kResourceExhausted);
  rig.clock->finish(&stream_two);
  EXPECT_TRUE(rig.put(b).ok());
  EXPECT_TRUE(rig.serves(b));
  EXPECT_EQ(rig.clock->waits, 0U) << "nobody waits on the way of a request";
  EXPECT_EQ(rig.memory->violations, 0U);
}

TEST(PageTier, ReplacingWaitsForNobodyEither) {
  PageRig rig(2);
  const Item item(1);
  ASSERT_TRUE(rig.put(item).ok());
  std::optional<PageLease> lease = rig.acquire(item);
  rig.use(*lease, &stream_one);
  ASSERT_TRUE(rig.put(item).ok());
  EXPECT_TRUE(holds(*lease, item));
  EXPECT_EQ(rig.tier->stats().records, 1U);
  EXPECT_EQ(rig.tier->stats().dead_bytes, item_layout().page_bytes());
  lease.reset();
  EXPECT_EQ(rig.tier->stats().dead_bytes, item_layout().page_bytes()) << "still read";
  rig.clock->finish(&stream_one);
  rig.tier->tidy();
  EXPECT_EQ(rig.tier->stats().dead_bytes, 0U);
  EXPECT_TRUE(rig.serves(item));
  EXPECT_EQ(rig.memory->violations, 0U);
}

TEST(PageTier, AnEraseZeroesWhatNobodyLeases) {
  PageRig rig(4);
  const Item a(1), b(2), c(3);
  for (const Item* item : {&a, &b, &c}) {
    ASSERT_TRUE(rig.put(*item).ok());
  }
  { rig.use(rig.acquire(a), &stream_one); }
  ASSERT_TRUE(rig.erase({a.key, b.key, a.key, key_of(77)}).ok());
  EXPECT_EQ(rig.clock->waits, 1U) << "for the stream that read it";
  EXPECT_EQ(rig.memory->violations, 0U);
  EXPECT_EQ(rig.removed, 2U);
  EXPECT_THAT(rig.leased, IsEmpty());
  EXPECT_FALSE(rig.acquire(a).ready());
  EXPECT_FALSE(rig.tier->contains(b.key));
  EXPECT_TRUE(rig.serves(c));
  EXPECT_EQ(rig.tier->stats().dead_bytes, 0U);
  ASSERT_TRUE(rig.erase({c.key}).ok());
  rig.expect_all_free();
}

TEST(PageTier, AnErasedLeaseStaysSoundAndIsZeroedAtItsEnd) {
  PageRig rig(2);
  const Item item(1);
  ASSERT_TRUE(rig.put(item).ok());
  std::optional<PageLease> first = rig.acquire(item), second = rig.acquire(item);
  ASSERT_TRUE(rig.erase({item.key}).ok());
  EXPECT_EQ(rig.removed, 1U);
  EXPECT_THAT(rig.leased, ElementsAre(item.key));
  EXPECT_FALSE(rig.acquire(item).ready());
  EXPECT_TRUE(holds(*first, item));
  first.reset();
  EXPECT_TRUE(holds(*second, item));
  second.reset();
  rig.expect_all_free();
}

TEST(PageTier, AnErasedLeaseIsZeroedWhenTheStreamsAreDone) {
  PageRig rig(1);
  const Item item(1), next(2);
  ASSERT_TRUE(rig.put(item).ok());
  {
    const PageLease lease = rig.acquire(item);
    rig.use(lease, &stream_one);
    ASSERT_TRUE(rig.erase({item.key}).ok());
  }
  EXPECT_FALSE(rig.all_zero());
  EXPECT_EQ(rig.put(next).code(), StatusCode::kResourceExhausted);
  rig.clock->finish(&stream_one);
  rig.tier->tidy();
  rig.expect_all_free();
  EXPECT_TRUE(rig.put(next).ok());
  EXPECT_EQ(rig.memory->violations, 0U);
}

// What was replaced while it was leased has the same key: an erase of that takes it too.
TEST(PageTier, AnEraseTakesReplacedCopiesToo) {
  PageRig rig(2);
  const Item item(1);
  ASSERT_TRUE(rig.put(item).ok());
  {
    const PageLease lease = rig.acquire(item);
    rig.use(lease, &stream_one);
    ASSERT_TRUE(rig.put(item).ok());
  }
  ASSERT_TRUE(rig.erase({item.key}).ok());
  EXPECT_EQ(rig.removed, 1U);
  rig.expect_all_free();
  EXPECT_EQ(rig.memory->violations, 0U);
}

TEST(PageTier, ListsByScope) {
  PageRig rig(4);
  const Item a(1, 0xAA), b(2, 0xBB);
  ASSERT_TRUE(rig.put(a).ok());
  ASSERT_TRUE(rig.put(b).ok());
  EXPECT_THAT(rig.tier->keys(hash_of(0xBB)), ElementsAre(b.key));
  EXPECT_THAT(rig.tier->keys(std::nullopt), ElementsAre(a.key, b.key));
}

TEST(PageTier, CopiesFromAnotherTier) {
  PageRig from(2), to(2);
  to.clock = from.clock;
  to.memory = make_fake_memory("gpu", item_layout(), 2, from.clock);
  to.tier = PageTier::create(to.memory, from.clock);
  to.memory->slow_copies = true;
  const Item item = long_item(1, 7), next = long_item(2, 7);
  ASSERT_TRUE(from.put(item).ok());
  ASSERT_TRUE(to.tier->put_copy(from.acquire(item), PageTier::Room::kEvict, &to.evicted).ok());
  EXPECT_TRUE(to.serves(item));
  EXPECT_EQ(from.put(next).code(), StatusCode::kResourceExhausted)
      << "the copy still reads the source";
  from.clock->finish(to.memory->copy_stream());
  EXPECT_TRUE(from.put(next).ok());
  EXPECT_TRUE(to.serves(item));
  const auto record = to.tier->inspect(item.key);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_TRUE(same_bytes((*record)->bytes(), item.record()->bytes()));
  EXPECT_EQ(from.memory->violations, 0U);
}

TEST(PageTier, AnEraseWaitsForCopies) {
  PageRig from(1), to(1);
  to.memory = make_fake_memory("gpu", item_layout(), 1, from.clock);
  to.tier = PageTier::create(to.memory, from.clock);
  to.memory->slow_copies = true;
  const Item item(1);
  ASSERT_TRUE(from.put(item).ok());
  ASSERT_TRUE(to.tier->put_copy(from.acquire(item), PageTier::Room::kEvict, &to.evicted).ok());
  ASSERT_TRUE(from.erase({item.key}).ok());
  EXPECT_EQ(from.clock->waits, 1U);
  EXPECT_EQ(from.memory->violations, 0U);
  from.expect_all_free();
  EXPECT_TRUE(holds(to.tier->acquire(item.request()), item));
}

TEST(PageTier, LeasesOutliveTheTier) {
  PageRig rig(1);
  const Item item(1);
  ASSERT_TRUE(rig.put(item).ok());
  std::optional<PageLease> lease = rig.acquire(item);
  rig.use(*lease, &stream_one);
  rig.tier.reset();
  EXPECT_TRUE(holds(*lease, item));
  EXPECT_EQ(rig.clock->waits, 0U);
  lease.reset();
  EXPECT_EQ(rig.clock->waits, 1U) << "memory may go only when nothing reads it";
}

TEST(PageTier, InspectingNeitherUsesNorKeeps) {
  PageRig rig(2);
  const Item a(1), b(2), c(3);
  ASSERT_TRUE(rig.put(a).ok());
  ASSERT_TRUE(rig.put(b).ok());
  EXPECT_EQ(*rig.tier->inspect(c.key), nullptr);
  ASSERT_TRUE(rig.tier->inspect(a.key).ok());
  EXPECT_EQ(rig.tier->stats().hits, 0U);
  EXPECT_EQ(rig.tier->leases_active(), 0U);
  ASSERT_TRUE(rig.put(c).ok());
  EXPECT_THAT(rig.evicted, ElementsAre(a.key));
}

}  // namespace
}  // namespace inferscale::testing
