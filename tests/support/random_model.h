#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "inferscale/model_spec.h"
#include "inferscale/status.h"

struct gguf_context;

namespace inferscale::testing {

/// A small model with random f32 weights that libllama loads: logits spread over about ±25,
/// attention neither uniform nor on one token. Equal options give equal files.
struct RandomModelOptions {
  std::string architecture = "llama";  ///< llama, qwen2, qwen3, granite or olmo2
  std::uint32_t layers = 2;
  std::uint32_t embedding = 128;  ///< must be heads * head_dim in qwen2 and olmo2
  std::uint32_t heads = 4;
  std::uint32_t kv_heads = 2;
  std::uint32_t head_dim = 32;
  std::uint32_t feed_forward = 160;
  std::uint32_t trained_positions = 512;
  std::uint64_t seed = 1;

  double freq_base = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;  ///< kLlama3: in llama and granite only
  double scaling_factor = 4.0;               ///< of kLinear and kYarn
  std::uint32_t original_context = 128;      ///< of kYarn
  double attn_factor = 1.0;                  ///< of kYarn; 1 leaves the key out

  /// qwen2: added to the bias of every key, at the slowest pair; of hundreds in the models
  /// themselves.
  double key_outlier = 0;

  bool add_bos = false;  ///< whether the tokenizer puts <s> before a text
  /// Last changes to the metadata, for files that must be refused.
  std::function<void(gguf_context*)> edit;
};

/// Writes the model to `path`. The tokenizer is byte-level BPE over the whole of Unicode, with the
/// specials
/// <|endoftext|>, <s>, <|im_start|>, <|im_end|> and a ChatML template.
[[nodiscard]] Status write_random_model(const std::filesystem::path& path,
                                        const RandomModelOptions& options);

/// One option set per family and rope scaling that is supported, with a name for test output.
struct NamedModelOptions {
  std::string name;
  RandomModelOptions options;
};
[[nodiscard]] std::vector<NamedModelOptions> all_random_models();
/// qwen2 whose keys have this outlier. It is in the list with 12; with 200, as in the models
/// themselves, libllama's own logits change by 0.4 from one position to another.
[[nodiscard]] NamedModelOptions outlier_model(double key_outlier);

inline void PrintTo(const NamedModelOptions& model, std::ostream* out) { *out << model.name; }

/// A fresh directory for a test, removed with everything in it at the end.
class TempDirectory {
 public:
  TempDirectory();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace inferscale::testing
