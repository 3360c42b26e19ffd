#include "memory/encode_worker.h"

#include <algorithm>
#include <random>

#include "base/log.h"
#include "memory/encode_retry.h"

namespace inferscale {
namespace {

constexpr TimestampUs kShortestRestUs = 10'000;
constexpr std::uint32_t kMaxFailures = 9;  // in a row: then some four minutes between two tries

}  // namespace

EncodeWorker::EncodeWorker(Work work) : work_(std::move(work)), thread_([this] { run(); }) {}

EncodeWorker::~EncodeWorker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EncodeWorker::wake() {
  {
    const std::lock_guard lock(mutex_);
    ++wakes_;
  }
  changed_.notify_all();
}

void EncodeWorker::rest(std::uint64_t wakes_seen, bool failing,
                        std::optional<TimestampUs> wait_us) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return stop_ || (!failing && wakes_ != wakes_seen); };
  if (wait_us) {
    changed_.wait_for(lock, std::chrono::microseconds(std::max(*wait_us, kShortestRestUs)), ready);
  } else {
    changed_.wait(lock, ready);
  }
}

void EncodeWorker::run() {
  std::minstd_rand random(static_cast<std::minstd_rand::result_type>(now_us()));
  std::uint32_t failures = 0;
  WorkControl control;
  control.cancelled = &stop_;
  while (!stop_) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      seen = wakes_;
    }
    const Result<EncodeReply> reply = work_.pass(control);
    if (stop_) {
      return;
    }
    if (reply.ok() && !reply->stopped_early) {
      failures = 0;
      rest(seen, false, work_.next_due_us());
      continue;
    }
    if (!reply.ok()) {
      log_message(failures == 0 ? LogLevel::kWarning : LogLevel::kDebug,
                  "facts stay text for now: " + reply.status().to_string());
    }
    failures = std::min(failures + 1, kMaxFailures);
    rest(seen, true, retry_delay_us(failures, static_cast<std::uint32_t>(random()) << 1U));
  }
}

}  // namespace inferscale
