#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "engine/engine.h"

namespace inferscale {

struct LlamaEngineOptions {
  std::filesystem::path model;            ///< GGUF of a supported family
  std::filesystem::path cache_directory;  ///< for the fingerprint cache; empty: none
  KvCodec cache_dtype = KvCodec::kF16;
  std::uint32_t context_tokens = 0;  ///< 0: the trained length, at most 8,192
  int threads = 0;                   ///< 0: the number of cores
  std::uint32_t max_branches = 32;
  std::uint32_t max_queue = 256;
  bool self_test = true;  ///< off only in tests that need a broken engine
};

/// Loads the model (refusing what is not supported before it is loaded), starts the owner thread
/// and runs the self-tests of the state layout and of the RopeSpec. When a self-test fails the
/// engine still serves text and `info().injection` is false. Errors: kNotFound, kUnsupported,
/// kDataLoss (truncated file), kResourceExhausted (memory).
[[nodiscard]] Result<std::unique_ptr<Engine>> open_llama_engine(const LlamaEngineOptions& options);

}  // namespace inferscale
