#pragma once

#include <atomic>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "retrieval/embedder.h"

namespace inferscale {

/// A bag of words: texts that share words are near each other. Fails on demand.
class FakeEmbedder final : public Embedder {
 public:
  static constexpr std::size_t kDim = 64;

  const std::string& id() const override { return id_; }
  std::size_t dim() const override { return kDim; }
  std::vector<Result<TextVectors>> embed(std::span<const std::string> texts) override {
    std::vector<Result<TextVectors>> results;
    for (const std::string& text : texts) {
      longest_text = std::max(longest_text.load(), text.size());
      if (broken) {
        results.emplace_back(unavailable("the embedder is broken"));
      } else {
        results.emplace_back(vectors_of(text));
      }
    }
    return results;
  }

  std::atomic<bool> broken = false;
  std::atomic<std::size_t> longest_text = 0;

 private:
  TextVectors vectors_of(const std::string& text) const {
    TextVectors vectors{id_, kDim, std::vector<float>(kDim)};
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t end = std::min(text.find(' ', begin), text.size());
      std::size_t state = std::hash<std::string>()(text.substr(begin, end - begin));
      for (float& value : vectors.values) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        value += static_cast<float>(state >> 40) / 8388608.0F - 1;
      }
      begin = end + 1;
    }
    double square = 1e-12;
    for (const float value : vectors.values) {
      square += static_cast<double>(value) * value;
    }
    for (float& value : vectors.values) {
      value = static_cast<float>(value / std::sqrt(square));
    }
    return vectors;
  }

  std::string id_ = "bag-of-words";
};

}  // namespace inferscale
