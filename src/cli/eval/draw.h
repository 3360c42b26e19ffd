#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
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

/// Another seed for everything that is about `text`.
inline std::uint64_t mix_seed(std::uint64_t seed, std::string_view text) {
  std::uint64_t mixed = seed;
  for (const char c : text) {
    mixed = (mixed ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;  // FNV-1a
  }
  return mixed;
}

}  // namespace inferscale::cli
