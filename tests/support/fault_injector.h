#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace inferscale::testing {

/// What goes wrong at a step.
enum class Fault {
  kNone,
  kNoSpace,    ///< as a full disk
  kIo,         ///< as a broken one
  kShort,      ///< a write or zero stops half way and fails; a read finds the end of the file early
  kKill,       ///< the process gets SIGKILL instead of the step
  kKillShort,  ///< the process gets SIGKILL half way through a write or zero, else as kKill
};

/// Everything that a store does to its files.
enum class Step {
  kRead,  ///< all others change something
  kCreate,
  kWrite,
  kZero,
  kPunch,
  kTruncate,
  kSync,
  kRename,
  kRemove,
  kMakeDirectory,
  kSyncDirectory,
};
inline constexpr std::size_t kSteps = 11;
[[nodiscard]] std::string_view step_name(Step step);

/// Counts the steps of everything that is wrapped with it, files of stores and of databases alike,
/// and says which of them fails. Thread-safe.
class FaultInjector {
 public:
  struct Plan {
    Fault fault = Fault::kNone;
    std::uint64_t at = 0;       ///< the number of the step, counted from 1 since `arm`
    bool reads = false;         ///< counts reads instead of changes
    bool until_healed = false;  ///< that step and all after it
  };

  /// From now on; the counters start again.
  void arm(const Plan& plan);
  /// No step fails any more; the counters go on.
  void heal();

  /// Called before a step is done: what is to happen instead. Does not return if that is kKill, nor
  /// if it is kKillShort unless the step is a write or zero, which then calls `kill_process`.
  [[nodiscard]] Fault next(Step step);
  [[noreturn]] static void kill_process();

  [[nodiscard]] std::uint64_t changes() const;
  [[nodiscard]] std::uint64_t reads() const;
  [[nodiscard]] std::uint64_t count(Step step) const;
  /// How many steps failed since `arm`.
  [[nodiscard]] std::uint64_t faults() const;

 private:
  mutable std::mutex mutex_;
  Plan plan_;
  std::array<std::uint64_t, kSteps> counts_{};
  std::uint64_t changes_ = 0;
  std::uint64_t faults_ = 0;
};

}  // namespace inferscale::testing
