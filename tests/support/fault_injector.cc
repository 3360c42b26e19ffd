#include "support/fault_injector.h"

#include <signal.h>
#include <unistd.h>

namespace inferscale::testing {

std::string_view step_name(Step step) {
  static constexpr std::array<std::string_view, kSteps> kNames = {
      "read", "create", "write",  "zero",           "punch",         "truncate",
      "sync", "rename", "remove", "make_directory", "sync_directory"};
  return kNames[static_cast<std::size_t>(step)];
}

void FaultInjector::arm(const Plan& plan) {
  const std::lock_guard lock(mutex_);
  plan_ = plan;
  counts_ = {};
  changes_ = 0;
  faults_ = 0;
}

void FaultInjector::heal() {
  const std::lock_guard lock(mutex_);
  plan_ = {};
}

Fault FaultInjector::next(Step step) {
  const std::lock_guard lock(mutex_);
  const bool is_read = step == Step::kRead;
  ++counts_[static_cast<std::size_t>(step)];
  changes_ += is_read ? 0 : 1;
  const std::uint64_t number = is_read ? counts_[static_cast<std::size_t>(step)] : changes_;
  if (plan_.fault == Fault::kNone || plan_.reads != is_read || number < plan_.at ||
      (number > plan_.at && !plan_.until_healed)) {
    return Fault::kNone;
  }
  ++faults_;
  const bool divisible = step == Step::kWrite || step == Step::kZero;
  if (plan_.fault == Fault::kKill || (plan_.fault == Fault::kKillShort && !divisible)) {
    kill_process();
  }
  return plan_.fault;
}

void FaultInjector::kill_process() {
  ::kill(::getpid(), SIGKILL);
  while (true) {
    ::pause();
  }
}

std::uint64_t FaultInjector::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

std::uint64_t FaultInjector::reads() const { return count(Step::kRead); }

std::uint64_t FaultInjector::count(Step step) const {
  const std::lock_guard lock(mutex_);
  return counts_[static_cast<std::size_t>(step)];
}

std::uint64_t FaultInjector::faults() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}

}  // namespace inferscale::testing
