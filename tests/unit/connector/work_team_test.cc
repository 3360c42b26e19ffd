#include "connector/work_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace inferscale::testing {
namespace {

void expect_every_part_once(WorkTeam& team) {
  for (const std::size_t total : {0U, 1U, 2U, 7U, 30U, 1000U}) {
    std::vector<std::atomic<int>> done(total);
    team.run(total, [&](std::size_t first, std::size_t count) {
      for (std::size_t i = first; i < first + count; ++i) {
        ++done[i];
      }
    });
    for (const std::atomic<int>& times : done) {
      ASSERT_EQ(times, 1);
    }
  }
}

TEST(WorkTeam, DoesEveryPartOnce) {
  for (const unsigned threads : {0U, 1U, 2U, 5U, 100U}) {
    WorkTeam team(threads);
    expect_every_part_once(team);
  }
}

// Each of two parts waits for the other: one thread alone would never end.
TEST(WorkTeam, WorksAtOnce) {
  WorkTeam team(2);
  std::atomic<int> begun = 0;
  team.run(2, [&](std::size_t, std::size_t count) {
    begun += static_cast<int>(count);
    while (begun < 2) {
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(begun, 2);
}

std::atomic<int> regions = 0;
std::atomic<unsigned> wanted = 0;

// As an OpenMP that gives one thread more than the caller's, however many are wanted.
void two_threads(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  ++regions;
  wanted = threads;
  EXPECT_EQ(flags, 0U);
  std::thread other(body, data);
  body(data);
  other.join();
}

void no_more_threads(void (*body)(void*), void* data, unsigned, unsigned) { body(data); }
void not_even_the_callers(void (*)(void*), void*, unsigned, unsigned) {}

TEST(WorkTeam, WorksOnThreadsOfOthers) {
  for (const ParallelRegion region : {&two_threads, &no_more_threads, &not_even_the_callers}) {
    WorkTeam team(3, region);
    expect_every_part_once(team);
  }
}

// As WorksAtOnce: only the region's second thread can end it, since the team has none of its own.
TEST(WorkTeam, AsksForAsManyThreadsAsThereAreParts) {
  WorkTeam team(3, &two_threads);
  regions = 0;
  std::atomic<int> begun = 0;
  team.run(2, [&](std::size_t, std::size_t count) {
    begun += static_cast<int>(count);
    while (begun < 2) {
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(wanted, 2U);
  team.run(100, [](std::size_t, std::size_t) {});
  EXPECT_EQ(wanted, 3U);
  team.run(1, [](std::size_t, std::size_t) {});  // nothing to share
  EXPECT_EQ(regions, 2);
  WorkTeam(1, &two_threads).run(100, [](std::size_t, std::size_t) {});
  EXPECT_EQ(regions, 2);
}

TEST(WorkTeam, SeveralCallersShareIt) {
  WorkTeam team(3);
  std::atomic<std::size_t> sum = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        team.run(10, [&](std::size_t, std::size_t count) { sum += count; });
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(sum, 4U * 200 * 10);
}

}  // namespace
}  // namespace inferscale::testing
