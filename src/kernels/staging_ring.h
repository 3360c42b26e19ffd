#pragma once

#include <cstddef>
#include <deque>
#include <optional>

namespace inferscale {

/// Hands out contiguous parts of a memory that are taken and given back in about the same order.
/// While all that is out, with the new part, is at most half of it, and parts come back in order,
/// there is always a place. One thread at a time.
class StagingRing {
 public:
  explicit StagingRing(std::size_t size = 0) : size_(size) {}

  /// The offset of `size` bytes that nobody has; nothing when there is no such place now.
  [[nodiscard]] std::optional<std::size_t> take(std::size_t size) {
    const std::optional<std::size_t> offset = place(size);
    if (offset) {
      parts_.push_back({*offset, size, false});
    }
    return offset;
  }

  /// REQUIRES: `take` gave it, and it was not given back since.
  void give_back(std::size_t offset) {
    for (Part& part : parts_) {
      part.free = part.free || part.offset == offset;
    }
    while (!parts_.empty() && parts_.front().free) {
      parts_.pop_front();
    }
    while (!parts_.empty() && parts_.back().free) {
      parts_.pop_back();
    }
  }

 private:
  struct Part {
    std::size_t offset = 0;
    std::size_t size = 0;
    bool free = false;
  };

  [[nodiscard]] std::optional<std::size_t> place(std::size_t size) const {
    const std::size_t first = parts_.empty() ? 0 : parts_.front().offset;
    const std::size_t behind = parts_.empty() ? 0 : parts_.back().offset + parts_.back().size;
    const bool around = !parts_.empty() && parts_.back().offset < first;
    if (size == 0 || size > size_) {
      return std::nullopt;
    }
    if (around) {
      return size <= first - behind ? std::optional(behind) : std::nullopt;
    }
    if (size <= size_ - behind) {
      return behind;
    }
    return size <= first ? std::optional<std::size_t>(0) : std::nullopt;
  }

  std::size_t size_;
  std::deque<Part> parts_;  // in the order in which they were taken
};

}  // namespace inferscale
