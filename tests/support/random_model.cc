#include "support/random_model.h"

#include <ggml.h>
#include <gguf.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <vector>

#include "support/random_tokenizer.h"

namespace inferscale::testing {
namespace {

/// SplitMix64 and Box-Muller: equal on every machine, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

struct Deleter {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
  void operator()(ggml_context* tensors) const { ggml_free(tensors); }
};

// Standard deviations of what the matrices give for a normalised input. Queries times keys then
// spread by 2 before the softmax, logits by 8.
constexpr double kQueryKey = 1.4;
constexpr double kValue = 1.0;
constexpr double kLogits = 8.0;
// Granite's multipliers; the logits are divided by theirs.
constexpr float kEmbeddingScale = 3.0F;
constexpr float kResidualScale = 0.6F;
constexpr float kAttentionScale = 0.12F;
constexpr float kLogitScale = 2.0F;

class Writer {
 public:
  explicit Writer(const RandomModelOptions& options)
      : options_(options), random_(options.seed), gguf_(gguf_init_empty()) {
    const std::size_t layer_floats =
        std::size_t{2} * options.embedding * (options.heads + options.kv_heads) * options.head_dim +
        std::size_t{3} * options.embedding * options.feed_forward;
    const std::size_t floats =
        options.layers * layer_floats + std::size_t{2} * random_vocab_size() * options.embedding;
    const std::size_t small_tensors = 16 * (options.layers + 1) * (ggml_tensor_overhead() + 4096);
    tensors_.reset(ggml_init({floats * sizeof(float) + small_tensors, nullptr, false}));
  }

  Status write(const std::filesystem::path& path) {
    set_metadata();
    set_rope();
    set_tokenizer(gguf_.get(), options_.architecture, options_.add_bos);
    add_tensors();
    if (options_.edit) {
      options_.edit(gguf_.get());
    }
    if (!gguf_write_to_file(gguf_.get(), path.c_str(), false)) {
      return unavailable("cannot write " + path.string());
    }
    return Status();
  }

 private:
  [[nodiscard]] std::string key(const char* name) const {
    return options_.architecture + "." + name;
  }
  void set_u32(const char* name, std::uint32_t value) {
    gguf_set_val_u32(gguf_.get(), key(name).c_str(), value);
  }
  void set_f32(const char* name, double value) {
    gguf_set_val_f32(gguf_.get(), key(name).c_str(), static_cast<float>(value));
  }

  void set_metadata() {
    gguf_set_val_str(gguf_.get(), "general.architecture", options_.architecture.c_str());
    gguf_set_val_str(gguf_.get(), "general.name", ("random " + options_.architecture).c_str());
    set_u32("block_count", options_.layers);
    set_u32("context_length", options_.trained_positions);
    set_u32("embedding_length", options_.embedding);
    set_u32("feed_forward_length", options_.feed_forward);
    set_u32("attention.head_count", options_.heads);
    set_u32("attention.head_count_kv", options_.kv_heads);
    set_u32("attention.key_length", options_.head_dim);
    set_u32("attention.value_length", options_.head_dim);
    set_f32("attention.layer_norm_rms_epsilon", 1e-5);
    if (options_.architecture == "granite") {
      set_f32("embedding_scale", kEmbeddingScale);
      set_f32("residual_scale", kResidualScale);
      set_f32("attention.scale", kAttentionScale);
      set_f32("logit_scale", kLogitScale);
    }
  }

  void set_rope() {
    set_u32("rope.dimension_count", options_.head_dim);
    set_f32("rope.freq_base", options_.freq_base);
    const bool yarn = options_.scaling == RopeScaling::kYarn;
    if (yarn || options_.scaling == RopeScaling::kLinear) {
      gguf_set_val_str(gguf_.get(), key("rope.scaling.type").c_str(), yarn ? "yarn" : "linear");
      set_f32("rope.scaling.factor", options_.scaling_factor);
    }
    if (yarn) {
      set_u32("rope.scaling.original_context_length", options_.original_context);
      if (options_.attn_factor != 1.0) {
        set_f32("rope.scaling.attn_factor", options_.attn_factor);
      }
    }
    if (options_.scaling == RopeScaling::kLlama3) {
      add_llama3_factors();
    }
  }

  /// 1 for the fast pairs, 8 for the slow ones, in between on a line, like the models themselves.
  void add_llama3_factors() {
    const std::uint32_t pairs = options_.head_dim / 2;
    ggml_tensor* tensor = add("rope_freqs.weight", pairs, 1);
    for (std::uint32_t i = 0; i < pairs; ++i) {
      const double ramp = std::clamp(3.0 * i / pairs - 1.0, 0.0, 1.0);
      static_cast<float*>(tensor->data)[i] = static_cast<float>(1.0 + 7.0 * ramp);
    }
  }

  ggml_tensor* add(const std::string& name, std::uint32_t inputs, std::uint32_t outputs) {
    ggml_tensor* tensor = outputs == 1
                              ? ggml_new_tensor_1d(tensors_.get(), GGML_TYPE_F32, inputs)
                              : ggml_new_tensor_2d(tensors_.get(), GGML_TYPE_F32, inputs, outputs);
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(gguf_.get(), tensor);
    return tensor;
  }
  /// Normal with `mean` and `deviation`.
  void add_random(const std::string& name, std::uint32_t inputs, std::uint32_t outputs, double mean,
                  double deviation) {
    ggml_tensor* tensor = add(name, inputs, outputs);
    for (std::int64_t i = 0; i < ggml_nelements(tensor); ++i) {
      static_cast<float*>(tensor->data)[i] =
          static_cast<float>(mean + deviation * random_.normal());
    }
  }
  /// A matrix whose outputs have deviation `output` for inputs of deviation 1.
  void add_matrix(const std::string& name, std::uint32_t inputs, std::uint32_t outputs,
                  double output) {
    add_random(name + ".weight", inputs, outputs, 0.0, output / std::sqrt(inputs));
  }
  void add_norm(const std::string& name, std::uint32_t size, double mean) {
    add_random(name + ".weight", size, 1, mean, 0.1 * mean);
  }

  void add_tensors() {
    const std::uint32_t vocab = random_vocab_size();
    const bool granite = options_.architecture == "granite";
    add_random("token_embd.weight", options_.embedding, vocab, 0.0,
               granite ? 1.0 / kEmbeddingScale : 1.0);
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      add_attention("blk." + std::to_string(layer) + ".");
      add_feed_forward("blk." + std::to_string(layer) + ".");
    }
    add_norm("output_norm", options_.embedding, 1.0);
    add_matrix("output", options_.embedding, vocab, granite ? kLogits * kLogitScale : kLogits);
  }

  void add_attention(const std::string& block) {
    const std::uint32_t queries = options_.heads * options_.head_dim;
    const std::uint32_t keys = options_.kv_heads * options_.head_dim;
    const bool olmo2 = options_.architecture == "olmo2";
    add_matrix(block + "attn_q", options_.embedding, queries, kQueryKey);
    add_matrix(block + "attn_k", options_.embedding, keys, kQueryKey);
    add_matrix(block + "attn_v", options_.embedding, keys, kValue);
    add_matrix(block + "attn_output", queries, options_.embedding, 1.0);
    if (options_.architecture == "qwen2") {
      add_random(block + "attn_q.bias", queries, 1, 0.0, 0.5);
      add_random(block + "attn_k.bias", keys, 1, 0.0, 1.5);  // larger, as in the models themselves
      add_outliers(block + "attn_k.bias");
      add_random(block + "attn_v.bias", keys, 1, 0.0, 0.3);
    }
    if (options_.architecture == "qwen3") {
      add_norm(block + "attn_q_norm", options_.head_dim, kQueryKey);
      add_norm(block + "attn_k_norm", options_.head_dim, kQueryKey);
    }
    if (olmo2) {
      add_norm(block + "attn_q_norm", queries, kQueryKey);
      add_norm(block + "attn_k_norm", keys, kQueryKey);
    }
    add_norm(block + (olmo2 ? "post_attention_norm" : "attn_norm"), options_.embedding, 1.0);
  }

  /// The slowest pair of a head is the last channels of its halves.
  void add_outliers(const std::string& name) {
    auto* bias = static_cast<float*>(ggml_get_tensor(tensors_.get(), name.c_str())->data);
    for (std::uint32_t i = options_.head_dim / 2; i <= options_.kv_heads * options_.head_dim;
         i += options_.head_dim / 2) {
      bias[i - 1] += static_cast<float>(options_.key_outlier);
    }
  }

  void add_feed_forward(const std::string& block) {
    add_matrix(block + "ffn_gate", options_.embedding, options_.feed_forward, 1.0);
    add_matrix(block + "ffn_up", options_.embedding, options_.feed_forward, 1.0);
    add_matrix(block + "ffn_down", options_.feed_forward, options_.embedding, 1.0);
    add_norm(block + (options_.architecture == "olmo2" ? "post_ffw_norm" : "ffn_norm"),
             options_.embedding, 1.0);
  }

  RandomModelOptions options_;
  Random random_;
  std::unique_ptr<gguf_context, Deleter> gguf_;
  std::unique_ptr<ggml_context, Deleter> tensors_;
};

}  // namespace

Status write_random_model(const std::filesystem::path& path, const RandomModelOptions& options) {
  return Writer(options).write(path);
}

std::vector<NamedModelOptions> all_random_models() {
  std::vector<NamedModelOptions> models;
  const auto add = [&](const char* name, const char* family, RopeScaling scaling) {
    RandomModelOptions options;
    options.architecture = family;
    options.scaling = scaling;
    models.push_back({name, options});
  };
  add("llama", "llama", RopeScaling::kNone);
  add("llama_llama3", "llama", RopeScaling::kLlama3);
  add("llama_linear", "llama", RopeScaling::kLinear);
  add("llama_yarn", "llama", RopeScaling::kYarn);
  add("qwen2", "qwen2", RopeScaling::kNone);
  add("qwen2_yarn", "qwen2", RopeScaling::kYarn);
  models.push_back(outlier_model(12));
  add("qwen3", "qwen3", RopeScaling::kNone);
  add("qwen3_yarn", "qwen3", RopeScaling::kYarn);
  add("granite", "granite", RopeScaling::kNone);
  add("olmo2", "olmo2", RopeScaling::kNone);
  models.back().options.layers = 3;
  return models;
}

NamedModelOptions outlier_model(double key_outlier) {
  NamedModelOptions model{"qwen2_outliers", {}};
  model.options.architecture = "qwen2";
  model.options.freq_base = 1e6;
  model.options.key_outlier = key_outlier;
  return model;
}

TempDirectory::TempDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "inferscale-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    std::perror("mkdtemp");
    std::abort();
  }
  path_ = name;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace inferscale::testing
