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
  /// For services that are to use these models. No text is embedded twice. With a vLLM server, what
  /// they encode is kept by it.
  [[nodiscard]] ServiceDependencies lend() const;
  /// Makes `directory` ready for a service that uses these models: a server believes only what is
  /// signed with the secret of the data directory that it belongs to.
  [[nodiscard]] Status prepare(const std::filesystem::path& directory) const;

 private:
  EvalModels() = default;
  MemoryOptions options_;
  ServiceDependencies dependencies_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Embedder> embedder_;  ///< null: retrieval by keywords alone
};

}  // namespace inferscale::cli
