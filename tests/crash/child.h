#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crash/oracle.h"

namespace inferscale::testing {

/// How a child ended, and what it told that concerns the checks.
struct ChildEnd {
  bool killed = false;  ///< by SIGKILL
  std::string failure;  ///< an operation or the opening failed by itself; empty: none did
  std::uint64_t acknowledged = 0;
  std::uint64_t steps = 0;  ///< that it counted, when it ended by itself
};

/// When a child is killed from outside: some time after it told so many lines.
struct KillTime {
  int lines = 0;
  std::chrono::microseconds later{0};
};

/// Runs crash_child with these arguments until it ends or is killed, and lets `oracle` follow what
/// it tells.
[[nodiscard]] ChildEnd run_child(const std::vector<std::string>& arguments,
                                 std::optional<KillTime> kill, Oracle& oracle);

}  // namespace inferscale::testing
