#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "inferscale/status.h"

namespace inferscale {

/// Turns text into vectors of norm 1. Thread-safe (calls may be serialised inside).
class Embedder {
 public:
  virtual ~Embedder() = default;
  /// Names model content and dim: vectors of different ids are never compared.
  [[nodiscard]] virtual const std::string& id() const = 0;
  [[nodiscard]] virtual std::size_t dim() const = 0;
  /// One result per text, in order; a text over the model's window becomes several chunks, none is
  /// cut. Errors are per item, so that one bad text does not fail a batch.
  [[nodiscard]] virtual std::vector<Result<TextVectors>> embed(
      std::span<const std::string> texts) = 0;
};

}  // namespace inferscale
