#pragma once

#include <filesystem>
#include <memory>

#include "retrieval/embedder.h"

namespace inferscale {

struct LlamaEmbedderOptions {
  std::filesystem::path model;  ///< a BERT GGUF with mean pooling (all-MiniLM-L6-v2)
  int threads = 0;              ///< 0: half of the cores
  /// Of file hashes; empty: the model is hashed at every start.
  std::filesystem::path cache_directory = {};
};

/// Texts of up to kMaxFactBytes; one over 256 tokens (the window the model was trained on) becomes
/// several overlapping chunks. Text that looks like a special token is text. Calls take turns batch
/// by batch, so a short text never waits for the whole of a long one. Per text: kInvalidArgument
/// (empty, too long, not UTF-8, nothing but white space and control characters). Errors here:
/// kNotFound, kInvalidArgument (not GGUF), kUnsupported (not an embedding model, or one of another
/// kind), kDataLoss (truncated file).
[[nodiscard]] Result<std::unique_ptr<Embedder>> open_llama_embedder(
    const LlamaEmbedderOptions& options);

}  // namespace inferscale
