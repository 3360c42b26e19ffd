#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "inferscale/memory.h"

namespace inferscale::cli {

/// Shows how far long work is, once it has taken a second: a bar with rate and time left on a
/// terminal, a line every few seconds elsewhere. One thread at a time.
class ProgressMeter {
 public:
  ~ProgressMeter();
  void set_enabled(bool enabled) { enabled_ = enabled; }
  void update(const std::string& stage, std::uint64_t done, std::uint64_t total);
  /// Removes the bar; the next update starts anew.
  void finish();
  [[nodiscard]] Progress callback();

 private:
  using Clock = std::chrono::steady_clock;
  void start(const std::string& stage, std::uint64_t done, Clock::time_point now);

  bool enabled_ = true;
  std::string stage_;
  std::uint64_t first_done_ = 0;
  Clock::time_point start_;
  Clock::time_point last_shown_;
};

/// "48 s", "3 min 20 s", "2 h 5 min".
[[nodiscard]] std::string format_duration(double seconds);

}  // namespace inferscale::cli
