#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace inferscale::cli {

/// Indices drawn in a way that is the same in every standard library, unlike its distributions.
class SeededDraw {
 public:
  explicit SeededDraw(std::uint64_t seed) : bits_(seed) {}
  /// Below `count`, which must not be 0.
  std::size_t index(std::size_t count) { return static_cast<std::size_t>(bits_() % count); }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t left = items.size(); left > 1; --left) {
      std::swap(items[left - 1], items[index(left)]);
    }
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace inferscale::cli
