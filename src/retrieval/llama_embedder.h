#pragma once

#include <filesystem>
#include <memory>

#include "retrieval/embedder.h"

namespace inferscale {

struct LlamaEmbedderOptions {
  std::filesystem::path model;  ///< a BERT-family GGUF with mean pooling (MiniLM-L6-v2)
  int threads = 0;              ///< 0: the number of cores
};

/// Errors: kNotFound, kUnsupported (not an embedding model), kDataLoss (truncated file).
[[nodiscard]] Result<std::unique_ptr<Embedder>> open_llama_embedder(
    const LlamaEmbedderOptions& options);

}  // namespace inferscale
