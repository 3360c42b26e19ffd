#pragma once

#include <memory>

#include "engine/engine.h"
#include "memory/service_core.h"
#include "retrieval/embedder.h"

namespace inferscale::cli {

/// An evaluation's models, opened once and lent to all its memories. Must outlive them.
class EvalModels {
 public:
  /// Errors: those of the models; kUnavailable when injection is off, with the reason.
  [[nodiscard]] static Result<std::unique_ptr<EvalModels>> open(
      const MemoryOptions& options, const ServiceDependencies& dependencies);

  [[nodiscard]] Engine& engine() const { return *engine_; }
  /// For services that are to use these models. No text is embedded twice.
  [[nodiscard]] ServiceDependencies lend() const;

 private:
  EvalModels() = default;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Embedder> embedder_;  ///< null: retrieval by keywords alone
};

}  // namespace inferscale::cli
