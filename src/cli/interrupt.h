#pragma once

#include <atomic>

namespace inferscale::cli {

/// Makes the first SIGINT or SIGTERM set a flag, so that work ends at its next step, and the
/// second one end the process at once.
void install_interrupt_handlers();

/// Set by the first signal; handed to long calls as their `cancelled`.
[[nodiscard]] const std::atomic<bool>& interrupted();

/// 128 + the signal: 130 for Ctrl-C.
[[nodiscard]] int interrupt_exit_code();

}  // namespace inferscale::cli
