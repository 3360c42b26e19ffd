#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kv/tier.h"
#include "unit/kv/sample_records.h"

namespace inferscale::testing {

/// What every Tier must do. A tier joins with a harness class and INSTANTIATE_TYPED_TEST_SUITE_P:
///   struct Harness {
///     std::unique_ptr<Tier> open(std::uint64_t budget_bytes);  // on an empty medium
///     // The budget that has room for `count` records of `size` bytes and for no more.
///     static std::uint64_t budget(std::uint64_t count, std::uint64_t size);
///     static std::uint64_t stored_bytes(const Record& record);  // what it counts for a record
///     void corrupt(const RecordKey& key);     // damages the bytes that are kept under `key`
///     static constexpr bool kKeepsHeld;       // records that somebody holds are never evicted
///   };
template <typename Harness>
class TierSuite : public ::testing::Test {
 protected:
  using RecordPtr = std::shared_ptr<const Record>;

  static SampleOptions options(std::uint32_t number, std::uint8_t scope = 0x33) {
    SampleOptions result;
    result.seed = number + 1;
    result.scope = scope;
    return result;
  }
  static RecordPtr record(std::uint32_t number, std::uint8_t scope = 0x33) {
    return make_record(options(number, scope));
  }
  static std::uint64_t size() { return Harness::stored_bytes(*record(0)); }

  /// Room for `count` records of one size.
  void open(std::uint64_t count) { tier_ = harness_.open(Harness::budget(count, size())); }

  Status put(std::uint32_t number, std::uint8_t scope = 0x33) {
    return tier_->put(key_of(number), record(number, scope), &evicted_);
  }
  RecordPtr get(std::uint32_t number) {
    const Result<RecordPtr> found = tier_->get(key_of(number));
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? *found : nullptr;
  }
  bool holds(std::uint32_t number) {
    const RecordPtr found = get(number);
    return found != nullptr && same_bytes(found->bytes(), record(number)->bytes());
  }
  std::uint64_t erase(const std::vector<RecordKey>& keys) {
    std::uint64_t removed = 0;
    EXPECT_TRUE(tier_->erase(keys, &removed).ok());
    return removed;
  }

  Harness harness_;
  std::unique_ptr<Tier> tier_;
  std::vector<RecordKey> evicted_;
};
TYPED_TEST_SUITE_P(TierSuite);

TYPED_TEST_P(TierSuite, StartsEmpty) {
  this->open(4);
  EXPECT_EQ(this->get(1), nullptr);
  EXPECT_FALSE(this->tier_->contains(key_of(1)));
  EXPECT_TRUE(this->tier_->keys(std::nullopt).empty());
  const TierStats stats = this->tier_->stats();
  EXPECT_EQ(stats.name, this->tier_->name());
  EXPECT_EQ(stats.records, 0U);
  EXPECT_EQ(stats.bytes, 0U);
  EXPECT_EQ(stats.budget_bytes, TypeParam::budget(4, this->size()));
  EXPECT_EQ(stats.hits, 0U);
  EXPECT_EQ(stats.degraded, "");
}

TYPED_TEST_P(TierSuite, GetsWhatWasPut) {
  this->open(4);
  ASSERT_TRUE(this->put(1).ok());
  ASSERT_TRUE(this->put(2).ok());
  EXPECT_TRUE(this->holds(1));
  EXPECT_TRUE(this->holds(2));
  EXPECT_FALSE(this->tier_->contains(key_of(3)));
  const TierStats stats = this->tier_->stats();
  EXPECT_EQ(stats.records, 2U);
  EXPECT_EQ(stats.bytes, 2 * this->size());
  EXPECT_EQ(stats.hits, 2U);
}

TYPED_TEST_P(TierSuite, ReplacesAndCountsTheNewSize) {
  this->open(4);
  ASSERT_TRUE(this->put(1).ok());
  SampleOptions larger = this->options(9);
  larger.n_tokens = 12;
  const auto replacement = make_record(larger);
  ASSERT_GT(TypeParam::stored_bytes(*replacement), this->size());
  ASSERT_TRUE(this->tier_->put(key_of(1), replacement, &this->evicted_).ok());
  EXPECT_TRUE(same_bytes(this->get(1)->bytes(), replacement->bytes()));
  EXPECT_EQ(this->tier_->stats().records, 1U);
  EXPECT_EQ(this->tier_->stats().bytes, TypeParam::stored_bytes(*replacement));
  ASSERT_TRUE(this->put(1).ok());
  EXPECT_TRUE(this->holds(1));
  EXPECT_EQ(this->tier_->stats().bytes, this->size());
  EXPECT_TRUE(this->evicted_.empty());
}

TYPED_TEST_P(TierSuite, EvictsTheUnusedFirstAndThenTheLeastRecentlyUsed) {
  this->open(3);
  for (const std::uint32_t number : {1U, 2U, 3U}) {
    ASSERT_TRUE(this->put(number).ok());
  }
  EXPECT_TRUE(this->holds(1));                        // now 2 is the first to go
  EXPECT_TRUE(this->tier_->contains(key_of(2)));      // looking is not using
  ASSERT_TRUE(this->tier_->inspect(key_of(2)).ok());  // nor is checking
  EXPECT_THAT(this->tier_->keys(std::nullopt),
              ::testing::ElementsAre(key_of(2), key_of(3), key_of(1)));
  ASSERT_TRUE(this->put(4).ok());
  EXPECT_THAT(this->evicted_, ::testing::ElementsAre(key_of(2)));
  ASSERT_TRUE(this->put(3).ok());  // replacing is not using, but makes it the newest
  ASSERT_TRUE(this->put(5).ok());
  EXPECT_THAT(this->evicted_, ::testing::ElementsAre(key_of(2), key_of(4)));
  EXPECT_TRUE(this->holds(5));
  ASSERT_TRUE(this->put(6).ok());
  EXPECT_THAT(this->evicted_, ::testing::ElementsAre(key_of(2), key_of(4), key_of(3)));
  ASSERT_TRUE(this->put(7).ok());  // of 1, 5 and 6 only 6 was never used
  EXPECT_THAT(this->evicted_, ::testing::ElementsAre(key_of(2), key_of(4), key_of(3), key_of(6)));
  EXPECT_TRUE(this->holds(1));
  EXPECT_EQ(this->get(2), nullptr);
  EXPECT_EQ(this->tier_->stats().evictions, 4U);
}

TYPED_TEST_P(TierSuite, NeverExceedsItsBudget) {
  this->open(5);
  std::mt19937 random(7);
  for (std::uint32_t step = 0; step < 100; ++step) {
    SampleOptions options = this->options(step);
    options.n_tokens = static_cast<std::uint32_t>(1 + random() % 30);
    (void)this->tier_->put(key_of(static_cast<std::uint32_t>(random() % 20)), make_record(options),
                           &this->evicted_);
    const TierStats stats = this->tier_->stats();
    ASSERT_LE(stats.bytes + stats.dead_bytes, stats.budget_bytes);
  }
  std::uint64_t bytes = 0;
  for (const RecordKey& key : this->tier_->keys(std::nullopt)) {
    bytes += TypeParam::stored_bytes(**this->tier_->get(key));
  }
  EXPECT_EQ(bytes, this->tier_->stats().bytes);
}

TYPED_TEST_P(TierSuite, RefusesWhatIsLargerThanTheBudget) {
  this->open(2);
  ASSERT_TRUE(this->put(1).ok());
  SampleOptions huge = this->options(2);
  huge.n_tokens = 100;
  EXPECT_EQ(this->tier_->put(key_of(2), make_record(huge), &this->evicted_).code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(this->holds(1));  // nothing gave way to what could not fit anyway
  EXPECT_TRUE(this->evicted_.empty());
}

TYPED_TEST_P(TierSuite, ErasesByKey) {
  this->open(4);
  for (const std::uint32_t number : {1U, 2U, 3U}) {
    ASSERT_TRUE(this->put(number).ok());
  }
  EXPECT_EQ(this->erase({key_of(1), key_of(3), key_of(1), key_of(9)}), 2U);
  EXPECT_EQ(this->get(1), nullptr);
  EXPECT_TRUE(this->holds(2));
  EXPECT_EQ(this->get(3), nullptr);
  EXPECT_EQ(this->tier_->stats().bytes, this->size());
  EXPECT_EQ(this->tier_->stats().evictions, 0U);
  EXPECT_EQ(this->erase({key_of(1)}), 0U);
  ASSERT_TRUE(this->put(1).ok());
  EXPECT_TRUE(this->holds(1));
}

TYPED_TEST_P(TierSuite, ListsAndErasesByScope) {
  this->open(6);
  ASSERT_TRUE(this->put(1, 0xAA).ok());
  ASSERT_TRUE(this->put(2, 0xBB).ok());
  ASSERT_TRUE(this->put(3, 0xAA).ok());
  const auto keys = this->tier_->keys(hash_of(0xAA));
  EXPECT_THAT(keys, ::testing::ElementsAre(key_of(1), key_of(3)));
  EXPECT_EQ(this->erase(keys), 2U);
  EXPECT_TRUE(this->tier_->keys(hash_of(0xAA)).empty());
  EXPECT_THAT(this->tier_->keys(std::nullopt), ::testing::ElementsAre(key_of(2)));
}

TYPED_TEST_P(TierSuite, HeldRecordsStaySoundWhateverHappens) {
  this->open(2);
  ASSERT_TRUE(this->put(1).ok());
  ASSERT_TRUE(this->put(2).ok());
  const auto replaced = this->get(1);
  const auto erased = this->get(2);
  ASSERT_TRUE(this->put(1).ok());
  EXPECT_EQ(this->erase({key_of(2)}), 1U);
  EXPECT_EQ(this->get(2), nullptr);
  for (std::uint32_t number = 3; number < 10; ++number) {
    (void)this->put(number);
  }
  EXPECT_TRUE(same_bytes(replaced->bytes(), this->record(1)->bytes()));
  EXPECT_TRUE(same_bytes(erased->bytes(), this->record(2)->bytes()));
  this->tier_.reset();
  EXPECT_TRUE(replaced->verify().ok());
  EXPECT_TRUE(erased->verify().ok());
}

TYPED_TEST_P(TierSuite, HeldRecordsAreNotEvictedWhereThatFreesNothing) {
  this->open(2);
  ASSERT_TRUE(this->put(1).ok());
  ASSERT_TRUE(this->put(2).ok());
  auto first = this->get(1);
  auto second = this->get(2);
  if (TypeParam::kKeepsHeld) {
    EXPECT_EQ(this->put(3).code(), StatusCode::kResourceExhausted);
    EXPECT_TRUE(this->tier_->contains(key_of(1)));
    EXPECT_TRUE(this->tier_->contains(key_of(2)));
    first.reset();
    ASSERT_TRUE(this->put(3).ok());
    EXPECT_THAT(this->evicted_, ::testing::ElementsAre(key_of(1)));
    EXPECT_TRUE(this->tier_->contains(key_of(2)));
  } else {
    EXPECT_TRUE(this->put(3).ok());
  }
  EXPECT_TRUE(this->holds(3));
}

TYPED_TEST_P(TierSuite, DropsAndCountsCorruptRecords) {
  this->open(4);
  ASSERT_TRUE(this->put(1).ok());
  ASSERT_TRUE(this->put(2).ok());
  this->harness_.corrupt(key_of(1));
  EXPECT_EQ(this->tier_->get(key_of(1)).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(this->get(1), nullptr);
  EXPECT_TRUE(this->holds(2));
  EXPECT_EQ(this->tier_->stats().corrupt, 1U);
  EXPECT_EQ(this->tier_->stats().records, 1U);
  ASSERT_TRUE(this->put(1).ok());
  EXPECT_TRUE(this->holds(1));
}

TYPED_TEST_P(TierSuite, DescribesWhatItHas) {
  this->open(3);
  ASSERT_TRUE(this->put(1).ok());
  const auto stored = TestFixture::record(1);
  const auto described = this->tier_->describe(key_of(1));
  ASSERT_TRUE(described.ok()) << described.status().to_string();
  ASSERT_NE(*described, nullptr);
  EXPECT_EQ((*described)->meta(), stored->meta());
  EXPECT_TRUE(std::ranges::equal((*described)->token_ids(), stored->token_ids()));
  const auto absent = this->tier_->describe(key_of(2));
  ASSERT_TRUE(absent.ok());
  EXPECT_EQ(*absent, nullptr);
  std::uint64_t removed = 0;
  const RecordKey keys[] = {key_of(1)};
  ASSERT_TRUE(this->tier_->erase(keys, &removed).ok());
  EXPECT_EQ(*this->tier_->describe(key_of(1)), nullptr);
}

TYPED_TEST_P(TierSuite, ServesManyThreads) {
  this->open(6);
  std::atomic<int> wrong{0};
  const auto work = [&](std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<RecordKey> evicted;
    for (int step = 0; step < 300; ++step) {
      const std::uint32_t number = static_cast<std::uint32_t>(random() % 12);
      const RecordKey key = key_of(number);
      std::uint64_t removed = 0;
      switch (random() % 6) {
        case 0:
          wrong += this->tier_->erase({&key, 1}, &removed).ok() ? 0 : 1;
          break;
        case 1:
        case 2:
          wrong += this->tier_->put(key, this->record(number), &evicted).code() ==
                           StatusCode::kUnavailable
                       ? 1
                       : 0;
          break;
        case 3:
          (void)this->tier_->contains(key);
          (void)this->tier_->keys(hash_of(0x33));
          (void)this->tier_->stats();
          break;
        default: {
          const auto found = this->tier_->get(key);
          wrong += found.ok() ? 0 : 1;
          if (found.ok() && *found != nullptr) {
            wrong += same_bytes((*found)->bytes(), this->record(number)->bytes()) ? 0 : 1;
          }
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back(work, seed);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  const TierStats stats = this->tier_->stats();
  EXPECT_LE(stats.bytes + stats.dead_bytes, stats.budget_bytes);
  EXPECT_EQ(stats.bytes, stats.records * this->size());
  EXPECT_EQ(stats.corrupt, 0U);
}

REGISTER_TYPED_TEST_SUITE_P(TierSuite, StartsEmpty, GetsWhatWasPut, ReplacesAndCountsTheNewSize,
                            EvictsTheUnusedFirstAndThenTheLeastRecentlyUsed, NeverExceedsItsBudget,
                            RefusesWhatIsLargerThanTheBudget, ErasesByKey, ListsAndErasesByScope,
                            HeldRecordsStaySoundWhateverHappens,
                            HeldRecordsAreNotEvictedWhereThatFreesNothing,
                            DropsAndCountsCorruptRecords, DescribesWhatItHas, ServesManyThreads);

}  // namespace inferscale::testing
