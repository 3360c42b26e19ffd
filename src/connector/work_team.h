#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace inferscale {

/// Calls body(data) on up to `threads` threads at once, the caller's among them, and returns when
/// all have returned: OpenMP's own entry GOMP_parallel, with `flags` 0.
using ParallelRegion = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

/// A few threads that share work with the caller. Thread-safe: while one caller uses them, another
/// does its work alone. Its own threads run where the thread that makes the team may run.
class WorkTeam {
 public:
  static constexpr unsigned kMaxThreads = 16;

  /// `threads`: with the caller's own; 1 makes none. With a `region` it makes none either and works
  /// on those of the region: an engine's, which wait for work without sleeping and would keep
  /// threads of ours off their processors.
  explicit WorkTeam(unsigned threads, ParallelRegion region = nullptr);
  ~WorkTeam();
  WorkTeam(const WorkTeam&) = delete;
  WorkTeam& operator=(const WorkTeam&) = delete;

  /// Calls work(first, count) for parts that make up 0 .. total - 1, on several threads at once;
  /// returns when all are done. `work` must not throw.
  void run(std::size_t total, const std::function<void(std::size_t, std::size_t)>& work);

 private:
  /// What is being worked on.
  struct Job {
    const std::function<void(std::size_t, std::size_t)>* work = nullptr;
    std::size_t total = 0;
    std::size_t part = 1;
    std::size_t next = 0;     // first that nobody has taken
    std::size_t pending = 0;  // parts that are not done
  };

  void serve();
  static void work_in_region(void* team);
  /// Takes parts until none is left. REQUIRES: `lock` holds mutex_.
  void work_on(std::unique_lock<std::mutex>& lock);

  const unsigned n_threads_;
  const ParallelRegion region_;  // null: threads_
  std::mutex in_use_;            // held by the caller whose job it is
  std::mutex mutex_;             // of what follows
  std::condition_variable work_there_;
  std::condition_variable work_done_;
  Job job_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace inferscale
