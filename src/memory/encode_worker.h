#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "inferscale/memory.h"

namespace inferscale {

/// A thread that encodes what writes have left to it and what answers have missed. It takes the
/// work from the catalog: one that is stopped or killed loses nothing.
class EncodeWorker {
 public:
  struct Work {
    /// Encodes what is due. REQUIRES: ends soon after `cancelled` is set.
    std::function<Result<EncodeReply>(const WorkControl&)> pass;
    /// How long until something that failed is due again; unset: nothing waits.
    std::function<std::optional<TimestampUs>()> next_due_us;
  };

  /// Begins with a pass: an earlier process may have left work.
  explicit EncodeWorker(Work work);
  /// Cancels the pass under way; what it has not committed stays pending.
  ~EncodeWorker();
  EncodeWorker(const EncodeWorker&) = delete;
  EncodeWorker& operator=(const EncodeWorker&) = delete;

  /// There is something new to encode.
  void wake();

 private:
  void run();
  /// Waits until there is work. While the engine fails, only for the time: new facts must not make
  /// it be tried at the rate at which they come.
  void rest(std::uint64_t wakes_seen, bool failing, std::optional<TimestampUs> wait_us);

  const Work work_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t wakes_ = 0;  // guarded by mutex_
  std::thread thread_;       // last: it uses all of the above
};

}  // namespace inferscale
