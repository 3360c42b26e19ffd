#pragma once

#include <filesystem>
#include <string>

#include "inferscale/model_spec.h"

namespace inferscale {

/// What, besides the model file, decides the KV that an engine computes.
struct FingerprintOptions {
  std::filesystem::path cache_directory;  ///< keeps content hashes between starts; empty: none kept
  std::string adapter_id;                 ///< content id of the LoRA adapters in use, "" without
  std::string engine_settings;  ///< canonical text of settings that change KV, such as the weights'
                                ///< override type
};

/// What `ModelSpec::fingerprint` is, from the content of the weights and the rest of the spec.
[[nodiscard]] Hash128 model_fingerprint(const Hash128& content, const ModelSpec& spec,
                                        const FingerprintOptions& options);

/// The model families that are supported, for messages: "llama, qwen2, qwen3, granite, olmo2".
[[nodiscard]] std::string supported_families();

/// Describes a GGUF model from its metadata, without loading its weights, and refuses what cannot
/// be served exactly or would make libllama abort. Hashes the whole file (98 MB: about 0.1 s)
/// unless the cache knows it. Errors: kNotFound; kInvalidArgument (not a GGUF file); kDataLoss
/// (damaged or truncated); kUnsupported that says what of the model is not supported and which are;
/// kUnavailable (I/O).
[[nodiscard]] Result<ModelSpec> read_model_spec(const std::filesystem::path& gguf,
                                                const FingerprintOptions& options);

}  // namespace inferscale
