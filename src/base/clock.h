#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "inferscale/status.h"

namespace inferscale {

/// Microseconds since 1970-01-01T00:00:00Z.
using TimestampUs = std::int64_t;

[[nodiscard]] TimestampUs now_us();

/// "2025-02-03T09:30:00+01:00" with `offset_minutes` 60; "...Z" with 0. Fractions appear only when
/// not zero.
[[nodiscard]] std::string format_rfc3339(TimestampUs time, int offset_minutes = 0);

struct ParsedTime {
  TimestampUs time = 0;
  int offset_minutes = 0;
};
/// RFC 3339; a date alone ("2025-02-03") means midnight UTC, a missing offset means UTC.
/// Errors: kInvalidArgument with an example of the accepted form. Accepts years 0001..9999.
[[nodiscard]] Result<ParsedTime> parse_rfc3339(std::string_view text);

/// Milliseconds of a steady clock since construction or `restart`.
class Stopwatch {
 public:
  Stopwatch() : start_(std::chrono::steady_clock::now()) {}
  void restart() { start_ = std::chrono::steady_clock::now(); }
  [[nodiscard]] double elapsed_ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_;
};

}  // namespace inferscale
