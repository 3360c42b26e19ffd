#include "model/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "base/hash.h"
#include "base/utf8.h"
#include "model/content_hash.h"
#include "model/gguf_file.h"
#include "model/gguf_rope.h"
#include "model/gguf_vocab.h"

namespace inferscale {
namespace {

constexpr const char* kFamilies[] = {"llama", "qwen2", "qwen3", "granite", "olmo2"};
constexpr std::uint32_t kMaxLayers = 512;  // libllama aborts on more
constexpr std::uint32_t kMaxPositions = 1U << 24;
constexpr std::uint32_t kMaxHeads = 1024;

/// A key that, when set, means that the model has something which is not supported.
struct Refusal {
  const char* key;  ///< after "<architecture>."
  const char* reason;
};
constexpr Refusal kRefusals[] = {
    {"attention.sliding_window", "attends through a sliding window"},
    {"attention.sliding_window_pattern", "attends through a sliding window"},
    {"attention.kv_lora_rank", "compresses its KV (multi-head latent attention)"},
    {"attention.key_length_mla", "compresses its KV (multi-head latent attention)"},
    {"attention.shared_kv_layers", "shares KV between layers"},
    {"attention.recurrent_layers", "has recurrent layers"},
    {"attention.indexer.head_count", "selects keys by an indexer (sparse attention)"},
    {"attention.clamp_kqv", "clamps its keys and values"},
    {"attention.max_alibi_bias", "uses attention biases (ALiBi)"},
    {"full_attention_interval", "has recurrent layers"},
    {"ssm.state_size", "has state space layers"},
    {"ssm.inner_size", "has state space layers"},
    {"wkv.head_size", "has recurrent layers"},
    {"shortconv.l_cache", "has convolution layers"},
    {"expert_count", "is a mixture of experts"},
    {"expert_used_count", "is a mixture of experts"},
    {"expert_group_count", "is a mixture of experts"},
    {"expert_shared_feed_forward_length", "is a mixture of experts"},
    {"nextn_predict_layers", "has layers that predict further tokens"},
    {"n_deepstack_layers", "takes image input between its layers"},
};

Status refuse(const GgufFile& file, const std::string& what) {
  return unsupported(
      fmt::format("model {} {}; supported are dense models with full attention of the families {}",
                  file.path().string(), what, supported_families()));
}

Status out_of_range(const GgufFile& file, const std::string& key, std::uint32_t value,
                    std::uint32_t most) {
  return data_loss(fmt::format("key {} of model {} must be in 1..{}, not {}", key,
                               file.path().string(), most, value));
}

Result<std::string> read_architecture(const GgufFile& file) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto name, file.text("general.architecture"));
  if (!name) {
    return data_loss(fmt::format("model {} does not name its architecture", file.path().string()));
  }
  const bool known =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const char* family) { return *name == family; }) != std::end(kFamilies);
  if (!known) {
    return unsupported(fmt::format("model {} is of the family \"{}\"; supported are {}",
                                   file.path().string(), utf8_prefix(*name, 64),
                                   supported_families()));
  }
  return *name;
}

/// Granite switches its rotary embedding off by this key, for all layers; others only note it.
Status check_granite(const GgufFile& file) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto rope, file.boolean("granite.rope.scaling.finetuned"));
  if (rope && !*rope) {
    return refuse(file, "does not rotate its keys (NoPE)");
  }
  // Elements are layer numbers or -1, so that even an array of zeros says something.
  if (file.is_set("granite.deepstack_mapping") ||
      file.has_zero_element("granite.deepstack_mapping")) {
    return refuse(file, "takes image input between its layers");
  }
  return Status();
}

Status check_refusals(const GgufFile& file, const std::string& architecture) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto splits, file.u16("split.count"));
  if (splits && *splits > 1) {
    return refuse(file, fmt::format("is split over {} files; merge them first", *splits));
  }
  for (const Refusal& refusal : kRefusals) {
    if (file.is_set(architecture + "." + refusal.key)) {
      return refuse(file, refusal.reason);
    }
  }
  if (const std::string bias = file.bias_of_other_type(); !bias.empty()) {  // libllama aborts
    return refuse(file, fmt::format("has a bias that is not in f32, {}", utf8_prefix(bias, 64)));
  }
  if (file.has_zero_element(architecture + ".attention.rope_pattern")) {
    return refuse(file, "does not rotate the keys of every layer (NoPE)");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto causal, file.boolean(architecture + ".attention.causal"));
  if (causal && !*causal) {
    return refuse(file, "does not attend causally");
  }
  return architecture == "granite" ? check_granite(file) : Status();
}

Result<std::uint32_t> required_u32(const GgufFile& file, const std::string& key,
                                   std::uint32_t most) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto value, file.uniform_u32(key));
  if (!value) {
    return data_loss(fmt::format("model {} lacks the key {}", file.path().string(), key));
  }
  if (*value < 1 || *value > most) {
    return out_of_range(file, key, *value, most);
  }
  return *value;
}

Result<KvShape> read_shape(const GgufFile& file, const std::string& architecture) {
  const std::string attention = architecture + ".attention.";
  KvShape shape;
  INFERSCALE_ASSIGN_OR_RETURN(shape.n_layers,
                              required_u32(file, architecture + ".block_count", kMaxLayers));
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint32_t embedding,
                              required_u32(file, architecture + ".embedding_length", 1U << 20));
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint32_t heads,
                              required_u32(file, attention + "head_count", kMaxHeads));
  INFERSCALE_ASSIGN_OR_RETURN(const auto kv_heads, file.uniform_u32(attention + "head_count_kv"));
  shape.n_kv_heads = kv_heads.value_or(heads);
  if (shape.n_kv_heads < 1 || heads % shape.n_kv_heads != 0) {
    return data_loss(
        fmt::format("model {} has {} KV heads for {} heads; the heads must be a multiple",
                    file.path().string(), shape.n_kv_heads, heads));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto key_length, file.u32(attention + "key_length"));
  INFERSCALE_ASSIGN_OR_RETURN(const auto value_length, file.u32(attention + "value_length"));
  shape.head_dim_k = key_length.value_or(embedding / heads);
  shape.head_dim_v = value_length.value_or(embedding / heads);
  if (const Status valid = shape.validate(); !valid.ok()) {
    return data_loss(fmt::format("model {}: {}", file.path().string(), valid.message()));
  }
  if (shape.head_dim_k != shape.head_dim_v) {
    return refuse(file,
                  fmt::format("has heads of {} elements for keys and {} for values, which libllama "
                              "cannot run in this family",
                              shape.head_dim_k, shape.head_dim_v));
  }
  return shape;
}

/// What every layer adds to its keys before it rotates them; nothing where that is not so: when a
/// layer adds none or normalises the sum, or the bias is part of a fused tensor.
Result<std::vector<float>> read_key_bias(const GgufFile& file, const KvShape& shape) {
  std::vector<float> bias;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    const std::string block = fmt::format("blk.{}.", layer);
    const std::string name = block + "attn_k.bias";
    INFERSCALE_ASSIGN_OR_RETURN(const auto row, file.f32_tensor(name.c_str(), shape.k_elements()));
    if (!row || file.has_tensor((block + "attn_k_norm.weight").c_str())) {
      return std::vector<float>();
    }
    bias.insert(bias.end(), row->begin(), row->end());
  }
  if (const Status valid = check_key_bias(bias, shape); !valid.ok()) {
    return data_loss(fmt::format("model {}: {}", file.path().string(), valid.message()));
  }
  if (std::all_of(bias.begin(), bias.end(), [](float channel) { return channel == 0; })) {
    bias.clear();
  }
  return bias;
}

Result<ModelSpec> read_and_check(const std::filesystem::path& gguf,
                                 const FingerprintOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(gguf));
  ModelSpec spec;
  INFERSCALE_ASSIGN_OR_RETURN(spec.architecture, read_architecture(file));
  INFERSCALE_RETURN_IF_ERROR(check_refusals(file, spec.architecture));
  INFERSCALE_ASSIGN_OR_RETURN(auto name, file.text("general.name"));
  spec.name = name.value_or(gguf.stem().string());
  INFERSCALE_ASSIGN_OR_RETURN(spec.shape, read_shape(file, spec.architecture));
  INFERSCALE_ASSIGN_OR_RETURN(
      spec.trained_positions,
      required_u32(file, spec.architecture + ".context_length", kMaxPositions));
  INFERSCALE_ASSIGN_OR_RETURN(
      spec.rope,
      read_rope_spec(file, spec.architecture, spec.shape.head_dim_k, spec.trained_positions));
  INFERSCALE_ASSIGN_OR_RETURN(spec.key_bias, read_key_bias(file, spec.shape));
  INFERSCALE_ASSIGN_OR_RETURN(spec.vocab_size, check_vocabulary(file));
  INFERSCALE_ASSIGN_OR_RETURN(const Hash128 content,
                              file_content_hash(file.descriptor(), gguf, options.cache_directory));
  spec.fingerprint = model_fingerprint(content, spec, options);
  return spec;
}

}  // namespace

Hash128 model_fingerprint(const Hash128& content, const ModelSpec& spec,
                          const FingerprintOptions& options) {
  HashMessage message;
  message.add_text("inferscale model 1").add_hash(content).add_text(spec.architecture);
  message.add_text(spec.rope.canonical_bytes());
  message.add_text(options.adapter_id).add_text(options.engine_settings);
  if (!spec.key_bias.empty()) {
    // Records of before this was known hold keys with the bias. Its values are in `content`.
    message.add_text("keys without bias 1");
  }
  return sha256_128(message.bytes());
}

std::string supported_families() {
  return fmt::format("{}", fmt::join(std::begin(kFamilies), std::end(kFamilies), ", "));
}

Result<ModelSpec> read_model_spec(const std::filesystem::path& gguf,
                                  const FingerprintOptions& options) {
  try {
    return read_and_check(gguf, options);
  } catch (const std::bad_alloc&) {  // metadata may ask for more memory than there is
    return resource_exhausted("not enough memory to describe model " + gguf.string());
  }
}

}  // namespace inferscale
