#include "base/turn_mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace inferscale {
namespace {

TEST(TurnMutex, ExcludesAndLosesNoTurn) {
  TurnMutex mutex;
  int unprotected = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const std::lock_guard lock(mutex);
        ++unprotected;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(unprotected, 8 * 500);
}

TEST(TurnMutex, AThreadThatReleasesGoesBehindOneThatWaits) {
  TurnMutex mutex;
  bool waiter_ran = false;
  mutex.lock();
  std::thread waiter([&] {
    const std::lock_guard lock(mutex);
    waiter_ran = true;
  });
  while (mutex.waiting() == 0) {
    std::this_thread::yield();
  }
  mutex.unlock();
  mutex.lock();  // asked after the waiter, so granted after it
  EXPECT_TRUE(waiter_ran);
  mutex.unlock();
  waiter.join();
}

}  // namespace
}  // namespace inferscale
