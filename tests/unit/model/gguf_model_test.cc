#include "model/gguf_model.h"

#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/random_model.h"

namespace inferscale::testing {
namespace {

using Edit = std::function<void(gguf_context*)>;

class GgufModelTest : public ::testing::Test {
 protected:
  Result<ModelSpec> read(const RandomModelOptions& options) {
    const std::filesystem::path path = directory_ / "model.gguf";
    const Status written = write_random_model(path, options);
    EXPECT_TRUE(written.ok()) << written.to_string();
    return read_model_spec(path, {});
  }
  Result<ModelSpec> read_edited(const std::string& family, Edit edit) {
    RandomModelOptions options;
    options.architecture = family;
    options.edit = std::move(edit);
    return read(options);
  }
  void expect_refused(const std::string& family, Edit edit, StatusCode code,
                      const std::string& part) {
    const auto spec = read_edited(family, std::move(edit));
    ASSERT_FALSE(spec.ok()) << "expected: " << part;
    EXPECT_EQ(spec.status().code(), code) << spec.status().to_string();
    EXPECT_NE(spec.status().message().find(part), std::string::npos) << spec.status().to_string();
    EXPECT_NE(spec.status().message().find("model.gguf"), std::string::npos);
  }
  TempDirectory directory_;
};

TEST_F(GgufModelTest, DescribesEveryFamily) {
  for (const NamedModelOptions& model : all_random_models()) {
    const auto spec = read(model.options);
    ASSERT_TRUE(spec.ok()) << model.name << ": " << spec.status().to_string();
    EXPECT_EQ(spec->architecture, model.options.architecture);
    EXPECT_EQ(spec->name, "random " + model.options.architecture);
    EXPECT_EQ(spec->shape, (KvShape{model.options.layers, 2, 32, 32}));
    EXPECT_EQ(spec->trained_positions, 512U);
    EXPECT_GT(spec->vocab_size, 300U);
    EXPECT_EQ(spec->rope.scaling, model.options.scaling) << model.name;
    EXPECT_EQ(spec->rope.rotary_dim, 32U);
    const bool adjacent = spec->architecture == "llama" || spec->architecture == "granite";
    EXPECT_EQ(spec->rope.pairing, adjacent ? RopePairing::kAdjacent : RopePairing::kHalves);
    EXPECT_NE(spec->fingerprint, Hash128());
  }
}

TEST_F(GgufModelTest, ReadsTheBiasOfKeysWhereItIsAddedLast) {
  for (const NamedModelOptions& model : all_random_models()) {
    const auto spec = read(model.options);
    ASSERT_TRUE(spec.ok()) << model.name;
    const bool biased = model.options.architecture == "qwen2";
    const KvShape& shape = spec->shape;
    ASSERT_EQ(spec->key_bias.size(), biased ? shape.n_layers * shape.k_elements() : 0)
        << model.name;
    for (std::size_t i = 15; biased && i < spec->key_bias.size(); i += 16) {
      EXPECT_NEAR(spec->key_bias[i], model.options.key_outlier, 6) << model.name << " " << i;
    }
  }
}

TEST_F(GgufModelTest, RefusesABiasThatLibllamaCannotAdd) {
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_I32}) {
    for (const std::string tensor : {"blk.1.attn_k.bias", "blk.0.attn_v.bias"}) {
      expect_refused(
          "qwen2", [&](gguf_context* g) { gguf_set_tensor_type(g, tensor.c_str(), type); },
          StatusCode::kUnsupported, tensor);
    }
  }
}

TEST_F(GgufModelTest, ABiasThatIsNotThatOfAllKeysIsLeftAlone) {
  const std::vector<float> zeros(64);
  ggml_context* tensors = ggml_init({4096, nullptr, false});
  ggml_tensor* norm = ggml_new_tensor_1d(tensors, GGML_TYPE_F32, 32);
  ggml_set_name(norm, "blk.1.attn_k_norm.weight");
  const Edit edits[] = {// all of it zero
                        [&](gguf_context* g) {
                          gguf_set_tensor_data(g, "blk.0.attn_k.bias", zeros.data());
                          gguf_set_tensor_data(g, "blk.1.attn_k.bias", zeros.data());
                        },
                        // normalised behind it
                        [&](gguf_context* g) { gguf_add_tensor(g, norm); }};
  for (const Edit& edit : edits) {
    const auto spec = read_edited("qwen2", edit);
    ASSERT_TRUE(spec.ok()) << spec.status().to_string();
    EXPECT_TRUE(spec->key_bias.empty());
  }
  ggml_free(tensors);
}

TEST_F(GgufModelTest, RefusesABiasThatIsDamaged) {
  expect_refused(
      "qwen2",
      [](gguf_context* g) {
        gguf_set_val_u32(g, "qwen2.attention.key_length", 64);
        gguf_set_val_u32(g, "qwen2.attention.value_length", 64);
        gguf_set_val_u32(g, "qwen2.rope.dimension_count", 64);
      },
      StatusCode::kDataLoss, "tensor blk.0.attn_k.bias");
  std::vector<float> bias(64, 1.0F);
  bias[17] = std::nanf("");
  expect_refused(
      "qwen2", [&](gguf_context* g) { gguf_set_tensor_data(g, "blk.1.attn_k.bias", bias.data()); },
      StatusCode::kDataLoss, "not finite");
}

TEST_F(GgufModelTest, ReadsScalingAsLibllamaDoes) {
  RandomModelOptions yarn;
  yarn.scaling = RopeScaling::kYarn;
  yarn.attn_factor = 0.5;
  const RopeSpec rope = read(yarn).value().rope;
  EXPECT_EQ(rope.scaling_factor, 4.0);
  EXPECT_EQ(rope.original_context, 128U);
  EXPECT_EQ(rope.yarn_ext_factor, 1.0);
  EXPECT_DOUBLE_EQ(rope.mscale(), 0.5 * (1.0 + 0.1 * std::log(4.0)));

  yarn.attn_factor = 1.0;
  yarn.scaling_factor = 0.5;  // no magnitude correction below 1
  EXPECT_DOUBLE_EQ(read(yarn).value().rope.mscale(), 1.0);

  RandomModelOptions llama3;
  llama3.scaling = RopeScaling::kLlama3;
  const RopeSpec factors = read(llama3).value().rope;
  ASSERT_EQ(factors.freq_factors.size(), 16U);
  EXPECT_EQ(factors.freq_factors.front(), 1.0F);
  EXPECT_GT(factors.freq_factors.back(), 4.0F);
}

TEST_F(GgufModelTest, DefaultsOfScalingKeys) {
  const auto scaling = [&](const Edit& edit) { return read_edited("llama", edit).value().rope; };
  EXPECT_EQ(scaling([](gguf_context* g) { gguf_remove_key(g, "llama.rope.freq_base"); }).freq_base,
            10000.0);
  const RopeSpec none = scaling([](gguf_context* g) {
    gguf_set_val_str(g, "llama.rope.scaling.type", "none");
    gguf_set_val_f32(g, "llama.rope.scaling.factor", 4.0F);
  });
  EXPECT_EQ(none.scaling, RopeScaling::kNone);
  EXPECT_EQ(none.scaling_factor, 1.0);
  const RopeSpec old_name =
      scaling([](gguf_context* g) { gguf_set_val_f32(g, "llama.rope.scale_linear", 2.0F); });
  EXPECT_EQ(old_name.scaling, RopeScaling::kLinear);
  EXPECT_EQ(old_name.scaling_factor, 2.0);
  const RopeSpec zero =
      scaling([](gguf_context* g) { gguf_set_val_f32(g, "llama.rope.scaling.factor", 0.0F); });
  EXPECT_EQ(zero.scaling, RopeScaling::kNone);
  const RopeSpec own_context = scaling([](gguf_context* g) {
    gguf_set_val_str(g, "llama.rope.scaling.type", "yarn");
    gguf_set_val_f32(g, "llama.rope.scaling.factor", 4.0F);
  });
  EXPECT_EQ(own_context.original_context, 512U);
}

TEST_F(GgufModelTest, HeadSizesHaveDefaults) {
  const auto spec = read_edited("llama", [](gguf_context* g) {
    gguf_remove_key(g, "llama.attention.key_length");
    gguf_remove_key(g, "llama.attention.value_length");
    gguf_remove_key(g, "llama.rope.dimension_count");
    gguf_remove_key(g, "llama.attention.head_count_kv");
    gguf_remove_key(g, "general.name");
  });
  ASSERT_TRUE(spec.ok()) << spec.status().to_string();
  EXPECT_EQ(spec->shape, (KvShape{2, 4, 32, 32}));
  EXPECT_EQ(spec->name, "model");
}

TEST_F(GgufModelTest, LayerArraysThatAreAlikeAreFine) {
  const std::uint32_t alike[] = {2, 2};
  EXPECT_TRUE(read_edited("llama", [&](gguf_context* g) {
                gguf_set_arr_data(g, "llama.attention.head_count_kv", GGUF_TYPE_UINT32, alike, 2);
              }).ok());
  const std::uint32_t differ[] = {2, 1};
  expect_refused(
      "llama",
      [&](gguf_context* g) {
        gguf_set_arr_data(g, "llama.attention.head_count_kv", GGUF_TYPE_UINT32, differ, 2);
      },
      StatusCode::kUnsupported, "differs from layer to layer");
}

TEST_F(GgufModelTest, KeysThatSayNothingAreFine) {
  // As libllama itself writes them when it saves a model.
  const auto spec = read_edited("qwen2", [](gguf_context* g) {
    const std::uint32_t ones[] = {1, 1};
    gguf_set_val_u32(g, "qwen2.attention.sliding_window", 0);
    gguf_set_val_u32(g, "qwen2.expert_count", 0);
    gguf_set_val_u32(g, "qwen2.attention.kv_lora_rank", 0);
    gguf_set_arr_data(g, "qwen2.attention.rope_pattern", GGUF_TYPE_UINT32, ones, 2);
    gguf_set_val_f32(g, "qwen2.rope.scaling.yarn_ext_factor", -1.0F);
    gguf_set_val_f32(g, "qwen2.rope.scaling.yarn_beta_fast", 32.0F);
    gguf_set_val_f32(g, "qwen2.rope.scaling.attn_factor", 1.0F);
    gguf_set_val_bool(g, "qwen2.rope.scaling.finetuned", false);
    gguf_set_val_bool(g, "qwen2.attention.causal", true);
    gguf_set_val_u16(g, "split.count", 0);
  });
  EXPECT_TRUE(spec.ok()) << spec.status().to_string();
}

struct Refused {
  const char* family;
  const char* reason;  ///< part of the message
  Edit edit;
};

TEST_F(GgufModelTest, RefusesWhatCannotBeServedExactly) {
  static constexpr std::int32_t kSections[] = {8, 4, 4, 0};
  static constexpr std::uint32_t kPattern[] = {1, 0};
  const Refused cases[] = {
      {"llama", "family \"gemma3\"; supported are llama, qwen2, qwen3, granite, olmo2",
       [](gguf_context* g) { gguf_set_val_str(g, "general.architecture", "gemma3"); }},
      {"llama", "partial rotary",
       [](gguf_context* g) { gguf_set_val_u32(g, "llama.rope.dimension_count", 16); }},
      {"qwen2", "M-RoPE",
       [](gguf_context* g) {
         gguf_set_arr_data(g, "qwen2.rope.dimension_sections", GGUF_TYPE_INT32, kSections, 4);
       }},
      {"llama", "rope scaling \"longrope\"",
       [](gguf_context* g) { gguf_set_val_str(g, "llama.rope.scaling.type", "longrope"); }},
      {"llama", "rope scaling \"dynamic\"",
       [](gguf_context* g) { gguf_set_val_str(g, "llama.rope.scaling.type", "dynamic"); }},
      {"llama", "attn_factor",
       [](gguf_context* g) { gguf_set_val_f32(g, "llama.rope.scaling.attn_factor", 1.2F); }},
      {"llama", "yarn_beta_fast",
       [](gguf_context* g) { gguf_set_val_f32(g, "llama.rope.scaling.yarn_beta_fast", 16.0F); }},
      {"llama", "yarn_log_multiplier",
       [](gguf_context* g) {
         gguf_set_val_f32(g, "llama.rope.scaling.yarn_log_multiplier", 0.1F);
       }},
      {"olmo2", "sliding window",
       [](gguf_context* g) { gguf_set_val_u32(g, "olmo2.attention.sliding_window", 4096); }},
      {"llama", "sliding window",
       [](gguf_context* g) { gguf_set_val_u32(g, "llama.attention.sliding_window", 4096); }},
      {"qwen3", "latent attention",
       [](gguf_context* g) { gguf_set_val_u32(g, "qwen3.attention.kv_lora_rank", 512); }},
      {"llama", "mixture of experts",
       [](gguf_context* g) { gguf_set_val_u32(g, "llama.expert_count", 8); }},
      {"granite", "mixture of experts",
       [](gguf_context* g) {
         gguf_set_val_u32(g, "granite.expert_shared_feed_forward_length", 64);
       }},
      {"granite", "state space",
       [](gguf_context* g) { gguf_set_val_u32(g, "granite.ssm.state_size", 16); }},
      {"qwen3", "recurrent",
       [](gguf_context* g) { gguf_set_val_u32(g, "qwen3.full_attention_interval", 4); }},
      {"granite", "NoPE",
       [](gguf_context* g) { gguf_set_val_bool(g, "granite.rope.scaling.finetuned", false); }},
      {"granite", "image input",
       [](gguf_context* g) {
         gguf_set_arr_data(g, "granite.deepstack_mapping", GGUF_TYPE_INT32, kPattern, 2);
       }},
      {"llama", "NoPE",
       [](gguf_context* g) {
         gguf_set_arr_data(g, "llama.attention.rope_pattern", GGUF_TYPE_UINT32, kPattern, 2);
       }},
      {"qwen2", "causally",
       [](gguf_context* g) { gguf_set_val_bool(g, "qwen2.attention.causal", false); }},
      {"qwen3", "further tokens",
       [](gguf_context* g) { gguf_set_val_u32(g, "qwen3.nextn_predict_layers", 1); }},
      {"llama", "split over 3 files",
       [](gguf_context* g) { gguf_set_val_u16(g, "split.count", 3); }},
      {"llama", "32 elements for keys and 16 for values",
       [](gguf_context* g) { gguf_set_val_u32(g, "llama.attention.value_length", 16); }},
      {"llama", "tokenizer \"bert\"",
       [](gguf_context* g) { gguf_set_val_str(g, "tokenizer.ggml.model", "bert"); }},
  };
  for (const Refused& item : cases) {
    SCOPED_TRACE(item.reason);
    expect_refused(item.family, item.edit, StatusCode::kUnsupported, item.reason);
  }
}

TEST_F(GgufModelTest, RefusesFrequencyFactorsWhereTheyWouldBeIgnoredOrMixed) {
  RandomModelOptions options;
  options.architecture = "qwen2";
  options.scaling = RopeScaling::kLlama3;
  const auto ignored = read(options);
  EXPECT_EQ(ignored.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(ignored.status().message().find("rope_freqs.weight"), std::string::npos);
  options.architecture = "llama";
  options.edit = [](gguf_context* g) { gguf_set_val_f32(g, "llama.rope.scaling.factor", 2.0F); };
  EXPECT_EQ(read(options).status().code(), StatusCode::kUnsupported);
}

TEST_F(GgufModelTest, RefusesValuesOutOfRange) {
  const std::pair<const char*, std::uint32_t> cases[] = {
      {"llama.block_count", 0},           {"llama.block_count", 513},
      {"llama.block_count", UINT32_MAX},  {"llama.embedding_length", 0},
      {"llama.attention.head_count", 0},  {"llama.attention.head_count_kv", 0},
      {"llama.attention.head_count", 3},  {"llama.attention.key_length", 0},
      {"llama.attention.key_length", 33}, {"llama.attention.key_length", 4096},
      {"llama.context_length", 0},        {"llama.context_length", UINT32_MAX}};
  for (const auto& [key, value] : cases) {
    const auto spec =
        read_edited("llama", [&](gguf_context* g) { gguf_set_val_u32(g, key, value); });
    EXPECT_EQ(spec.status().code(), StatusCode::kDataLoss) << key << " " << value;
  }
  for (const float base : {0.0F, -1.0F, NAN, INFINITY}) {
    const auto spec = read_edited(
        "llama", [&](gguf_context* g) { gguf_set_val_f32(g, "llama.rope.freq_base", base); });
    EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument) << base;
  }
}

TEST_F(GgufModelTest, AKeyOfAnotherTypeIsAnErrorAndNoAbort) {
  const char* const keys[] = {"general.architecture",
                              "llama.block_count",
                              "llama.context_length",
                              "llama.embedding_length",
                              "llama.attention.head_count",
                              "llama.attention.head_count_kv",
                              "llama.attention.key_length",
                              "llama.attention.value_length",
                              "llama.attention.causal",
                              "llama.rope.dimension_count",
                              "llama.rope.freq_base",
                              "llama.rope.scaling.type",
                              "llama.rope.scaling.factor",
                              "llama.rope.scaling.attn_factor",
                              "llama.rope.scaling.original_context_length",
                              "llama.rope.scaling.yarn_ext_factor",
                              "tokenizer.ggml.model",
                              "tokenizer.ggml.tokens",
                              "tokenizer.ggml.merges",
                              "general.name",
                              "split.count"};
  for (const char* key : keys) {
    const std::pair<const char*, Edit> wrong[] = {
        {"i8 array", [&](gguf_context* g) { gguf_set_arr_data(g, key, GGUF_TYPE_INT8, "abc", 3); }},
        {"empty array",
         [&](gguf_context* g) { gguf_set_arr_data(g, key, GGUF_TYPE_UINT32, "", 0); }},
        {"f64", [&](gguf_context* g) { gguf_set_val_f64(g, key, 1.0); }},
        {"i64", [&](gguf_context* g) { gguf_set_val_i64(g, key, -1); }}};
    for (const auto& [type, edit] : wrong) {
      const auto spec = read_edited("llama", edit);
      // An array of equal numbers may stand for a number, so not every case names the type.
      EXPECT_FALSE(spec.ok()) << key << " as " << type;
    }
  }
  for (const char* key :
       {"llama.attention.sliding_window", "llama.expert_count", "llama.rope.dimension_sections"}) {
    EXPECT_EQ(read_edited("llama", [&](gguf_context* g) { gguf_set_val_str(g, key, "x"); })
                  .status()
                  .code(),
              StatusCode::kUnsupported);
  }
}

TEST_F(GgufModelTest, MissingKeysAreNamed) {
  for (const char* key :
       {"general.architecture", "llama.block_count", "llama.context_length",
        "llama.embedding_length", "llama.attention.head_count", "tokenizer.ggml.model",
        "tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    const auto spec = read_edited("llama", [&](gguf_context* g) { gguf_remove_key(g, key); });
    EXPECT_EQ(spec.status().code(), StatusCode::kDataLoss) << key;
  }
}

TEST_F(GgufModelTest, ATokenizerThatWouldAbortIsRefused) {
  const auto set = [](const char* key, std::vector<const char*> texts) {
    return [=](gguf_context* g) mutable { gguf_set_arr_str(g, key, texts.data(), texts.size()); };
  };
  std::vector<const char*> twice(64, "same");
  expect_refused("llama", set("tokenizer.ggml.tokens", twice), StatusCode::kDataLoss, "twice");
  expect_refused("llama", set("tokenizer.ggml.tokens", {"a", "b"}), StatusCode::kDataLoss, "32 to");
  expect_refused("llama", set("tokenizer.ggml.merges", {"ab"}), StatusCode::kDataLoss, "merge");
  expect_refused("llama", set("tokenizer.ggml.merges", {""}), StatusCode::kDataLoss, "merge");
  expect_refused("llama", set("tokenizer.ggml.merges", {"a "}), StatusCode::kDataLoss, "merge");
}

}  // namespace
}  // namespace inferscale::testing
