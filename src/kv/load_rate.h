#pragma once

#include <cstdint>
#include <mutex>

#include "inferscale/model_spec.h"

namespace inferscale {

/// How fast a tier's records load, as measured, to tell whether loading one would take longer than
/// prefilling its tokens. Thread-safe.
class LoadRate {
 public:
  /// A record of `elements` K and V elements took `seconds` to read and verify.
  void note(std::uint64_t elements, double seconds) {
    if (elements == 0 || !(seconds >= 0)) {
      return;
    }
    const double measured = seconds / static_cast<double>(elements);
    const std::lock_guard lock(mutex_);
    // The mean of about the last ten; the first one counts whole.
    seconds_per_element_ += (measured - seconds_per_element_) * (known_ ? 0.1 : 1.0);
    known_ = true;
  }

  /// False while nothing was measured. One in sixteen of those found slower is let through, so that
  /// a medium that was busy once is measured again.
  [[nodiscard]] bool slower_than(std::uint64_t elements, double prefill_us) {
    const std::lock_guard lock(mutex_);
    const double load_us = seconds_per_element_ * static_cast<double>(elements) * 1e6;
    if (!known_ || prefill_us <= 0 || load_us <= prefill_us) {
      return false;
    }
    return ++refused_ % 16 != 0;
  }

 private:
  std::mutex mutex_;
  double seconds_per_element_ = 0;
  bool known_ = false;
  std::uint64_t refused_ = 0;
};

/// K and V elements of `n_tokens` tokens in all layers.
[[nodiscard]] inline std::uint64_t kv_elements(const KvShape& shape, std::uint64_t n_tokens) {
  return n_tokens * shape.n_layers * (shape.k_elements() + shape.v_elements());
}

}  // namespace inferscale
