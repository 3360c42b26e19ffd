#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace inferscale {

/// A mutex that is granted in the order of asking. A std::mutex may give itself back to the thread
/// that just released it, again and again, so that one question would wait for a whole import.
class TurnMutex {
 public:
  void lock() {
    std::unique_lock guard(mutex_);
    const std::uint64_t turn = next_turn_++;
    changed_.wait(guard, [&] { return turn == current_turn_; });
  }
  void unlock() {
    {
      const std::lock_guard guard(mutex_);
      ++current_turn_;
    }
    changed_.notify_all();
  }

  /// Threads that asked and were not granted yet; for tests.
  [[nodiscard]] std::uint64_t waiting() {
    const std::lock_guard guard(mutex_);
    return next_turn_ > current_turn_ ? next_turn_ - current_turn_ - 1 : 0;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_turn_ = 0;
  std::uint64_t current_turn_ = 0;
};

}  // namespace inferscale
