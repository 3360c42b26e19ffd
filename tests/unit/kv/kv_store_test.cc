#include "inferscale/kv_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "unit/kv/sample_records.h"
#include "unit/kv/store_fixture.h"

namespace inferscale::testing {
namespace {

using ::testing::HasSubstr;

TEST(KvStore, GivesBackWhatWasPut) {
  const auto store = open_memory_store(4);
  const Item item(1);
  EXPECT_FALSE(store->contains(item.key));
  ASSERT_TRUE(store->put(item.key, item.record()).ok());
  EXPECT_TRUE(store->contains(item.key));
  const Lease lease = acquire(*store, item);
  ASSERT_TRUE(lease.ready());
  EXPECT_EQ(lease.reason(), MissReason::kNone);
  EXPECT_TRUE(same_bytes(lease.record()->bytes(), item.record()->bytes()));
}

TEST(KvStore, RefusesDescriptions) {
  const auto store = open_memory_store(4);
  const Item item(1);
  const auto described = Record::describe(item.record()->meta(), item.tokens);
  ASSERT_TRUE(described.ok());
  EXPECT_EQ(store->put(item.key, *described).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(store->contains(item.key));
}

TEST(KvStore, ErasesForAnOwnerWhatItKeeps) {
  const auto store = open_memory_store(4);
  const Item a(1), b(2);
  ASSERT_TRUE(store->put(a.key, a.record()).ok());
  ASSERT_TRUE(store->put(b.key, b.record()).ok());
  const RecordKey both[] = {a.key, b.key};
  EXPECT_TRUE(store->contains_any(both));
  const auto erased = store->erase_owned({"default", "alice", 1}, both);
  ASSERT_TRUE(erased.ok());
  EXPECT_EQ(erased->host, 2U);
  EXPECT_EQ(erased->unreached, "");
  EXPECT_FALSE(store->contains_any(both));
}

TEST(KvStore, AnswersRequestsInOrder) {
  const auto store = open_memory_store(4);
  const Item a(1), b(2), c(3);
  ASSERT_TRUE(store->put(a.key, a.record()).ok());
  ASSERT_TRUE(store->put(c.key, c.record()).ok());
  const RecordRequest requests[] = {c.request(), b.request(), a.request(), c.request()};
  const std::vector<Lease> leases = store->acquire(requests);
  ASSERT_EQ(leases.size(), 4U);
  EXPECT_TRUE(same_bytes(leases[0].record()->bytes(), c.record()->bytes()));
  EXPECT_EQ(leases[1].record(), nullptr);
  EXPECT_EQ(leases[1].reason(), MissReason::kAbsent);
  EXPECT_TRUE(same_bytes(leases[2].record()->bytes(), a.record()->bytes()));
  EXPECT_EQ(leases[3].record(), leases[0].record());
  EXPECT_TRUE(store->acquire({}).empty());
}

TEST(KvStore, EveryFieldOfTheRequestMustMatch) {
  const auto store = open_memory_store(4);
  const Item item(1);
  ASSERT_TRUE(store->put(item.key, item.record()).ok());
  const auto reason = [&](auto change) {
    RecordRequest request = item.request();
    change(request);
    return acquire(*store, request).reason();
  };
  EXPECT_EQ(reason([](auto& r) { r.model_fingerprint = hash_of(9); }), MissReason::kWrongModel);
  EXPECT_EQ(reason([](auto& r) { ++r.shape.n_layers; }), MissReason::kWrongModel);
  EXPECT_EQ(reason([](auto& r) { r.shape.head_dim_v += 2; }), MissReason::kWrongModel);
  EXPECT_EQ(reason([](auto& r) { r.scope = hash_of(9); }), MissReason::kWrongScope);
  EXPECT_EQ(reason([](auto& r) { r.context_id = hash_of(9); }), MissReason::kWrongContext);
  EXPECT_EQ(reason([](auto& r) { r.context_id = hash_of(9), r.any_context = true; }),
            MissReason::kNone);
  EXPECT_EQ(reason([](auto& r) { r.scope = hash_of(9), r.any_context = true; }),
            MissReason::kWrongScope);
  for (std::size_t i = 0; i < item.tokens.size(); ++i) {
    std::vector<TokenId> other = item.tokens;
    ++other[i];
    EXPECT_EQ(reason([&](auto& r) { r.token_ids = other; }), MissReason::kWrongTokens);
  }
  EXPECT_EQ(reason([](auto& r) { r.token_ids = r.token_ids.first(2); }), MissReason::kWrongTokens);
  EXPECT_EQ(reason([](auto& r) { r.token_ids = {}; }), MissReason::kWrongTokens);
  EXPECT_EQ(misses(*store, MissReason::kWrongModel), 3U);
  EXPECT_EQ(misses(*store, MissReason::kWrongScope), 2U);
  EXPECT_EQ(misses(*store, MissReason::kWrongContext), 1U);
  EXPECT_EQ(misses(*store, MissReason::kWrongTokens), 5U);
  EXPECT_TRUE(acquire(*store, item).ready());
}

TEST(KvStore, TellsEvictedFromErasedFromAbsent) {
  const auto store = open_memory_store(2);
  const Item a(1), b(2), c(3), never(4);
  for (const Item* item : {&a, &b, &c}) {
    ASSERT_TRUE(store->put(item->key, item->record()).ok());
  }
  EXPECT_EQ(acquire(*store, a).reason(), MissReason::kEvicted);
  ASSERT_TRUE(store->erase({&b.key, 1}).ok());
  EXPECT_EQ(acquire(*store, b).reason(), MissReason::kErased);
  EXPECT_EQ(acquire(*store, never).reason(), MissReason::kAbsent);
  ASSERT_TRUE(store->erase({&a.key, 1}).ok());
  EXPECT_EQ(acquire(*store, a).reason(), MissReason::kErased);
  ASSERT_TRUE(store->put(b.key, b.record()).ok());
  EXPECT_TRUE(acquire(*store, b).ready());
  ASSERT_TRUE(store->put(a.key, a.record()).ok());
  EXPECT_TRUE(acquire(*store, a).ready());
  const KvStoreStats stats = store->stats();
  EXPECT_EQ(stats.puts, 5U);
  EXPECT_EQ(stats.tiers.at(0).evictions, 2U);
  EXPECT_EQ(stats.misses_by_reason[static_cast<int>(MissReason::kErased)], 2U);
}

TEST(KvStore, CorruptMemoryIsDroppedAndCounted) {
  const auto store = open_memory_store(2);
  const Item item(1);
  const auto record = item.record();
  ASSERT_TRUE(store->put(item.key, record).ok());
  *const_cast<std::byte*>(record->layer_k(0)) ^= std::byte{1};
  EXPECT_EQ(acquire(*store, item).reason(), MissReason::kChecksum);
  EXPECT_EQ(acquire(*store, item).reason(), MissReason::kAbsent);
  EXPECT_FALSE(store->contains(item.key));
  EXPECT_EQ(store->stats().tiers.at(0).corrupt, 1U);
  EXPECT_EQ(store->stats().tiers.at(0).records, 0U);
}

TEST(KvStore, LeasesAreCountedAndOutliveTheStore) {
  auto store = open_memory_store(2);
  const Item item(1);
  ASSERT_TRUE(store->put(item.key, item.record()).ok());
  Lease first = acquire(*store, item);
  {
    const Lease second = acquire(*store, item);
    EXPECT_EQ(store->stats().leases_active, 2U);
  }
  EXPECT_EQ(store->stats().leases_active, 1U);
  Lease moved = std::move(first);
  EXPECT_FALSE(first.ready());  // NOLINT: moved-from leases are empty, which is what is tested
  EXPECT_EQ(store->stats().leases_active, 1U);
  store.reset();
  EXPECT_TRUE(moved.record()->verify().ok());
}

TEST(KvStore, ErasedWhileLeasedIsUsableByItsHolderOnly) {
  const auto store = open_memory_store(2);
  const Item item(1), other(2);
  ASSERT_TRUE(store->put(item.key, item.record()).ok());
  ASSERT_TRUE(store->put(other.key, other.record()).ok());
  const Lease lease = acquire(*store, item);
  const RecordKey keys[] = {item.key, other.key, item.key, key_of(77)};
  const auto counts = store->erase(keys);
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->host, 2U);
  EXPECT_EQ(counts->disk, 0U);
  EXPECT_EQ(counts->leased, 1U);
  EXPECT_FALSE(store->contains(item.key));
  EXPECT_EQ(acquire(*store, item).reason(), MissReason::kErased);
  EXPECT_TRUE(lease.record()->verify().ok());
  EXPECT_EQ(store->stats().tiers.at(0).records, 0U);
}

TEST(KvStore, EraseScopeTakesThatScopeOnly) {
  const auto store = open_memory_store(8);
  const Item a(1, 0xAA), b(2, 0xAA), c(3, 0xBB);
  for (const Item* item : {&a, &b, &c}) {
    ASSERT_TRUE(store->put(item->key, item->record()).ok());
  }
  const auto counts = store->erase_scope(hash_of(0xAA));
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->host, 2U);
  EXPECT_EQ(acquire(*store, a).reason(), MissReason::kErased);
  EXPECT_EQ(acquire(*store, b).reason(), MissReason::kErased);
  EXPECT_TRUE(acquire(*store, c).ready());
  EXPECT_EQ(store->erase_scope(hash_of(0xAA))->host, 0U);
}

TEST(KvStore, BudgetSmallerThanOneRecordStoresNothing) {
  const Item item(1);
  const auto store = open_store(memory_options(item.size() - 1));
  const Status status = store->put(item.key, item.record());
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("budget"));
  EXPECT_EQ(acquire(*store, item).reason(), MissReason::kAbsent);
  EXPECT_EQ(store->stats().puts, 0U);
}

TEST(KvStore, APoolFullOfLeasesRefusesAndRecovers) {
  const auto store = open_memory_store(2);
  const Item a(1), b(2), c(3);
  ASSERT_TRUE(store->put(a.key, a.record()).ok());
  ASSERT_TRUE(store->put(b.key, b.record()).ok());
  {
    const Lease lease_a = acquire(*store, a);
    const Lease lease_b = acquire(*store, b);
    EXPECT_EQ(store->put(c.key, c.record()).code(), StatusCode::kResourceExhausted);
    EXPECT_TRUE(acquire(*store, a).ready());
  }
  EXPECT_TRUE(store->put(c.key, c.record()).ok());
  EXPECT_TRUE(acquire(*store, c).ready());
}

TEST(KvStore, ReplacingKeepsOldLeasesSound) {
  const auto store = open_memory_store(2);
  const Item item(1);
  ASSERT_TRUE(store->put(item.key, item.record()).ok());
  const Lease old = acquire(*store, item);
  ASSERT_TRUE(store->put(item.key, item.record()).ok());
  const Lease renewed = acquire(*store, item);
  EXPECT_NE(old.record(), renewed.record());
  EXPECT_TRUE(old.record()->verify().ok());
  EXPECT_EQ(store->stats().tiers.at(0).records, 1U);
}

TEST(KvStore, RefusesNonsense) {
  EXPECT_EQ(KvStore::open(memory_options(0)).status().code(), StatusCode::kInvalidArgument);
  const auto store = open_memory_store(2);
  EXPECT_EQ(store->put(key_of(1), nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store->erase({})->host, 0U);
}

}  // namespace
}  // namespace inferscale::testing
