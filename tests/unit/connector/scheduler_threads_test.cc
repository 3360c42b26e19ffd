#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "unit/connector/index_fixture.h"

namespace inferscale::testing {
namespace {

// Two ranks add and drop, one thread erases and expects, two match: a match never has a record
// that was erased before it began, nor tokens that differ from the prompt's.
TEST(SchedulerThreads, ErasedRecordsAreNeverMatched) {
  constexpr std::uint32_t kFacts = 32;
  constexpr int kRounds = 400;
  const auto index = make_index(2);
  std::vector<IndexedRecord> records;
  std::vector<Tokens> parts;
  for (std::uint32_t i = 0; i < kFacts; ++i) {
    records.push_back(fact(i));
    parts.push_back(records.back().tokens);
  }
  const Tokens prompt = join(parts);
  const RequestParams params = asking_for(records);
  // Fact 0 is erased for good once this is set, and never expected again.
  std::atomic<bool> erased = false;

  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        for (const IndexedRecord& record : records) {
          EXPECT_TRUE(index->add(rank, record).ok());
        }
        const RecordKey dropped[] = {records[5].key};
        EXPECT_TRUE(index->drop(rank, dropped).ok());
      }
    });
  }
  threads.emplace_back([&] {
    for (int round = 0; round < kRounds; ++round) {
      const RecordKey keys[] = {records[3].key};
      index->erase(keys);
      index->expect(keys[0], records[3].scope);
      if (round == kRounds / 2) {
        const RecordKey first[] = {records[0].key};
        index->erase(first);
        erased = true;
      }
    }
  });
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const bool gone = erased;
        const Match match = index->match(prompt, params);
        std::uint32_t counted = static_cast<std::uint32_t>(match.segments.size());
        for (const MatchFallback& fallback : match.fallbacks) {
          counted += fallback.count;
        }
        EXPECT_EQ(counted, kFacts);
        for (const MatchedSegment& segment : match.segments) {
          EXPECT_FALSE(gone && segment.key == records[0].key);
          EXPECT_EQ(segment.key, records[segment.begin / 4].key);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_FALSE(index->contains(records[0].key));
}

}  // namespace
}  // namespace inferscale::testing
