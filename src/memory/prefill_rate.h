#pragma once

#include <cstddef>
#include <mutex>

namespace inferscale {

/// How long this engine prefills a token, as measured. Thread-safe.
class PrefillRate {
 public:
  /// Runs of a few tokens say more of fixed costs than of tokens: they are left out.
  void note(std::size_t tokens, double milliseconds) {
    if (tokens < 16 || !(milliseconds > 0)) {
      return;
    }
    const double measured = milliseconds * 1e3 / static_cast<double>(tokens);
    const std::lock_guard lock(mutex_);
    us_per_token_ += (measured - us_per_token_) * (us_per_token_ > 0 ? 0.2 : 1.0);
  }

  /// Microseconds for `tokens` more tokens; 0 while nothing was measured.
  [[nodiscard]] double us_for(std::size_t tokens) const {
    const std::lock_guard lock(mutex_);
    return us_per_token_ * static_cast<double>(tokens);
  }

 private:
  mutable std::mutex mutex_;
  double us_per_token_ = 0;
};

}  // namespace inferscale
