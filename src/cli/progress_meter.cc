#include "cli/progress_meter.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/status_line.h"

namespace inferscale::cli {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kQuiet{1.0};         // work that ends within a second shows nothing
constexpr Seconds kTerminalStep{0.1};  // between two drawings of the bar
constexpr Seconds kLogStep{5.0};       // between two lines where there is no terminal
constexpr std::size_t kBarCells = 24;

std::string rate_text(double per_second) {
  if (per_second > 0 && per_second < 1) {
    return fmt::format("{:.1f} s each", 1 / per_second);
  }
  return per_second >= 100 ? fmt::format("{:.0f}/s", per_second)
                           : fmt::format("{:.1f}/s", per_second);
}

std::string bar(double share) {
  const auto full = static_cast<std::size_t>(share * kBarCells);
  return fmt::format("[{:#>{}}{:.>{}}]", "", full, "", kBarCells - full);
}

}  // namespace

std::string format_duration(double seconds) {
  const auto whole = static_cast<long>(std::max(0.0, seconds + 0.5));
  if (whole < 60) {
    return fmt::format("{} s", whole);
  }
  if (whole < 3600) {
    return fmt::format("{} min {} s", whole / 60, whole % 60);
  }
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

ProgressMeter::~ProgressMeter() { finish(); }

void ProgressMeter::start(const std::string& stage, std::uint64_t done, Clock::time_point now) {
  stage_ = stage;
  first_done_ = done;
  start_ = now;
  // The first drawing comes after the quiet second, the first line after a whole step.
  last_shown_ = now;
}

void ProgressMeter::update(const std::string& stage, std::uint64_t done, std::uint64_t total) {
  if (!enabled_) {
    return;
  }
  const Clock::time_point now = Clock::now();
  if (stage != stage_ || done < first_done_) {
    start(stage, done, now);
    return;
  }
  const Seconds elapsed = now - start_;
  const Seconds step = stderr_is_terminal() ? kTerminalStep : kLogStep;
  if (elapsed < kQuiet || now - last_shown_ < step || total == 0) {
    return;
  }
  last_shown_ = now;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const double rate = static_cast<double>(done - first_done_) / elapsed.count();
  const std::string left =
      rate > 0 ? format_duration(static_cast<double>(total - std::min(done, total)) / rate) : "?";
  const std::string counts =
      fmt::format("{}/{} {:3.0f} %  {}", done, total, share * 100, rate_text(rate));
  if (stderr_is_terminal()) {
    const std::string line = fmt::format("{} {} {}  {} left", stage, bar(share), counts, left);
    draw_status_line(line.substr(0, static_cast<std::size_t>(terminal_columns() - 1)));
  } else {
    write_stderr_line(fmt::format("{}: {}, about {} left", stage, counts, left));
  }
}

void ProgressMeter::finish() {
  stage_.clear();
  clear_status_line();
}

Progress ProgressMeter::callback() {
  return [this](const std::string& stage, std::uint64_t done, std::uint64_t total) {
    update(stage, done, total);
  };
}

}  // namespace inferscale::cli
