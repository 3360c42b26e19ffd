#include "connector/work_team.h"

#include <algorithm>

namespace inferscale {
namespace {

// More parts than threads: a thread that the system holds up must not hold up the others.
constexpr std::size_t kPartsPerThread = 2;

}  // namespace

WorkTeam::WorkTeam(unsigned threads, ParallelRegion region)
    : n_threads_(std::clamp(threads, 1U, kMaxThreads)), region_(region) {
  for (unsigned i = 1; i < n_threads_ && region_ == nullptr; ++i) {
    threads_.emplace_back([this] { serve(); });
  }
}

WorkTeam::~WorkTeam() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_there_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void WorkTeam::run(std::size_t total, const std::function<void(std::size_t, std::size_t)>& work) {
  if (total == 0) {
    return;
  }
  const std::unique_lock mine(in_use_, std::try_to_lock);
  if (n_threads_ == 1 || total == 1 || !mine.owns_lock()) {
    work(0, total);
    return;
  }
  const std::size_t parts = std::min(total, kPartsPerThread * n_threads_);
  std::unique_lock lock(mutex_);
  const auto threads = static_cast<unsigned>(std::min<std::size_t>(n_threads_, parts));
  job_.work = &work;
  job_.total = total;
  job_.part = (total + parts - 1) / parts;
  job_.next = 0;
  job_.pending = (total + job_.part - 1) / job_.part;
  if (region_ != nullptr) {
    lock.unlock();
    region_(&work_in_region, this, threads, 0);
    lock.lock();
  }
  work_there_.notify_all();
  work_on(lock);
  work_done_.wait(lock, [this] { return job_.pending == 0; });
  job_ = Job();
}

void WorkTeam::work_on(std::unique_lock<std::mutex>& lock) {
  while (job_.next < job_.total) {
    const std::size_t first = job_.next;
    const std::size_t count = std::min(job_.part, job_.total - first);
    const auto& work = *job_.work;
    job_.next += count;
    lock.unlock();
    work(first, count);
    lock.lock();
    if (--job_.pending == 0) {
      work_done_.notify_all();
    }
  }
}

void WorkTeam::work_in_region(void* team) {
  auto* const self = static_cast<WorkTeam*>(team);
  std::unique_lock lock(self->mutex_);
  self->work_on(lock);
}

void WorkTeam::serve() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    work_on(lock);
    work_there_.wait(lock, [this] { return stop_ || job_.next < job_.total; });
  }
}

}  // namespace inferscale
