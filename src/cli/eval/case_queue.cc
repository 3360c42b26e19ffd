#include "cli/eval/case_queue.h"

#include <algorithm>
#include <utility>

namespace inferscale::cli {

CaseQueue::CaseQueue(const std::vector<std::size_t>& questions) {
  for (const std::size_t count : questions) {
    cases_.push_back({count, 0, 0, false});
  }
}

std::optional<CaseQueue::Job> CaseQueue::take_question() {
  const auto found = std::find_if(cases_.begin(), cases_.end(), [](const Case& each) {
    return each.open && each.taken < each.questions;
  });
  if (found == cases_.end()) {
    return std::nullopt;
  }
  return Job{static_cast<std::size_t>(found - cases_.begin()), found->taken++};
}

std::optional<CaseQueue::Job> CaseQueue::next() {
  std::unique_lock lock(mutex_);
  while (status_.ok()) {
    if (const std::optional<Job> question = take_question()) {
      return question;
    }
    if (next_to_open_ < cases_.size()) {
      ++opening_;
      return Job{next_to_open_++, std::nullopt};
    }
    if (opening_ == 0) {
      break;
    }
    changed_.wait(lock);
  }
  return std::nullopt;
}

void CaseQueue::opened(std::size_t case_index) {
  const std::lock_guard lock(mutex_);
  --opening_;
  cases_.at(case_index).open = true;
  changed_.notify_all();
}

bool CaseQueue::answered(std::size_t case_index) {
  const std::lock_guard lock(mutex_);
  Case& done = cases_.at(case_index);
  return ++done.answered == done.questions;
}

void CaseQueue::fail(Status status) {
  const std::lock_guard lock(mutex_);
  if (status_.ok()) {
    status_ = std::move(status);
  }
  changed_.notify_all();
}

Status CaseQueue::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace inferscale::cli
