#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "inferscale/status.h"

namespace inferscale::cli {

/// Hands the work of several cases to workers: a case is opened by one of them, then its questions
/// are asked by whoever is free. Questions go before cases that are not open yet, so that few are
/// open at once. Thread-safe.
class CaseQueue {
 public:
  struct Job {
    std::size_t case_index = 0;
    std::optional<std::size_t> question;  ///< none: open the case
  };

  /// `questions`: how many each case has, at least one.
  explicit CaseQueue(const std::vector<std::size_t>& questions);

  /// The next job. Blocks while others open cases whose questions may be next. Nothing when all
  /// jobs are taken, or something has failed.
  [[nodiscard]] std::optional<Job> next();
  /// The questions of a case can be asked now.
  void opened(std::size_t case_index);
  /// Whether it was the case's last question that was under way: nobody needs the case any more.
  [[nodiscard]] bool answered(std::size_t case_index);
  /// No job is handed out any more. The first failure is kept.
  void fail(Status status);

  [[nodiscard]] Status status() const;

 private:
  struct Case {
    std::size_t questions = 0;
    std::size_t taken = 0;
    std::size_t answered = 0;
    bool open = false;
  };
  [[nodiscard]] std::optional<Job> take_question();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Case> cases_;
  std::size_t next_to_open_ = 0;
  std::size_t opening_ = 0;
  Status status_;
};

}  // namespace inferscale::cli
