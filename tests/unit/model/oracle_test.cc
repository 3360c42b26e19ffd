// The oracle is what other equivalence tests trust, so it must itself agree with libllama on every
// family and rope scaling: f32 weights, f32 cache, flash attention.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/llama_handles.h"
#include "support/oracle_model.h"
#include "support/random_model.h"

namespace inferscale::testing {
namespace {

// At least 64 queries: below, ggml's flash attention also adds up in f16.
constexpr std::int32_t kTokens = 72;

using Logits = std::vector<Vector>;

/// Logits of each token, f32 cache.
Logits run_libllama(const std::filesystem::path& path, const std::vector<TokenId>& tokens,
                    std::int32_t first_position, llama_flash_attn_type flash) {
  ensure_llama_backend();
  const LlamaModelPtr model(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 512;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = flash;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.kv_unified = true;
  const LlamaContextPtr context(model ? llama_init_from_model(model.get(), params) : nullptr);
  if (context == nullptr) {
    ADD_FAILURE() << "libllama refuses the model";
    return {};
  }
  LlamaBatch batch(static_cast<std::int32_t>(tokens.size()), 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.add(tokens[i], first_position + static_cast<std::int32_t>(i), 0, true);
  }
  EXPECT_EQ(llama_decode(context.get(), batch.get()), 0);
  const std::int32_t vocab = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
  Logits rows;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const float* row = llama_get_logits_ith(context.get(), static_cast<std::int32_t>(i));
    rows.emplace_back(row, row + vocab);
  }
  return rows;
}

std::vector<TokenId> some_tokens(std::uint32_t vocab_size) {
  std::vector<TokenId> tokens;
  std::uint32_t state = 12345;
  for (int i = 0; i < kTokens; ++i) {
    state = state * 1664525 + 1013904223;
    tokens.push_back(static_cast<TokenId>((state >> 8) % vocab_size));
  }
  return tokens;
}

std::vector<std::int32_t> positions_from(std::int32_t first) {
  std::vector<std::int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

double largest(const Vector& logits) {
  double most = 0;
  for (const double logit : logits) {
    most = std::max(most, std::abs(logit));
  }
  return most;
}

double largest(const Logits& logits) {
  double most = 0;
  for (const Vector& row : logits) {
    most = std::max(most, largest(row));
  }
  return most;
}

/// Largest difference of a logit, in parts of the largest logit.
double relative_error(const Logits& actual, const Logits& expected) {
  double error = actual.size() == expected.size() ? 0 : INFINITY;
  for (std::size_t t = 0; t < std::min(actual.size(), expected.size()); ++t) {
    error = std::max(error, largest(add(actual[t], scale(expected[t], -1))));
  }
  return error / largest(expected);
}

class OracleTest : public ::testing::TestWithParam<NamedModelOptions> {
 protected:
  void SetUp() override {
    path_ = directory_ / "model.gguf";
    ASSERT_TRUE(write_random_model(path_, GetParam().options).ok());
  }
  TempDirectory directory_;
  std::filesystem::path path_;
};

TEST_P(OracleTest, LogitsEqualLibllamas) {
  auto oracle = OracleModel::load(path_);
  ASSERT_TRUE(oracle.ok()) << oracle.status().to_string();
  const std::vector<TokenId> tokens = some_tokens(oracle->spec().vocab_size);
  // 200 lies beyond YaRN's original context of 128.
  for (const std::int32_t first : {0, 200}) {
    const auto with_flash = run_libllama(path_, tokens, first, LLAMA_FLASH_ATTN_TYPE_ENABLED);
    const auto without = run_libllama(path_, tokens, first, LLAMA_FLASH_ATTN_TYPE_DISABLED);
    oracle->set_f16_attention(false);
    const auto exact = oracle->forward(tokens, positions_from(first), {}).logits;
    oracle->set_f16_attention(true);
    const auto rounded = oracle->forward(tokens, positions_from(first), {}).logits;
    EXPECT_GT(largest(exact), 10) << "logits are too flat to tell models apart";
    EXPECT_LT(largest(exact), 60);
    EXPECT_LE(relative_error(exact, without), 3e-5) << "from position " << first;
    EXPECT_LE(relative_error(exact, with_flash), 1e-3) << "from position " << first;
    EXPECT_LE(relative_error(rounded, with_flash), 3e-4) << "from position " << first;
  }
}

TEST_P(OracleTest, PastRowsGiveTheSameAsOneCall) {
  const auto oracle = OracleModel::load(path_);
  ASSERT_TRUE(oracle.ok());
  const std::vector<TokenId> tokens = some_tokens(oracle->spec().vocab_size);
  const std::vector<std::int32_t> positions = positions_from(3);
  const auto whole = oracle->forward(tokens, positions, {});
  const std::span<const TokenId> all(tokens);
  const std::span<const std::int32_t> all_positions(positions);
  OracleKv past = oracle->forward(all.first(25), all_positions.first(25), {}).kv;
  const auto rest = oracle->forward(all.subspan(25), all_positions.subspan(25), past);
  for (std::size_t t = 25; t < tokens.size(); ++t) {
    for (std::size_t i = 0; i < whole.logits[t].size(); ++i) {
      ASSERT_NEAR(rest.logits[t - 25][i], whole.logits[t][i], 1e-9);
    }
  }
  past.append(rest.kv);
  ASSERT_EQ(past.rows(), tokens.size());
  EXPECT_NEAR(past.layers[1].keys[30][5], whole.kv.layers[1].keys[30][5], 1e-9);
}

TEST_P(OracleTest, AttentionIsNeitherUniformNorOnOneToken) {
  // A different early token must change the last logits, but not replace them.
  const auto oracle = OracleModel::load(path_);
  ASSERT_TRUE(oracle.ok());
  std::vector<TokenId> tokens = some_tokens(oracle->spec().vocab_size);
  const Vector before = oracle->forward(tokens, positions_from(1), {}).logits.back();
  tokens[3] = (tokens[3] + 17) % static_cast<TokenId>(oracle->spec().vocab_size);
  const Vector after = oracle->forward(tokens, positions_from(1), {}).logits.back();
  double change = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    change = std::max(change, std::abs(before[i] - after[i]));
  }
  EXPECT_GT(change, 0.05);
  EXPECT_LT(change, largest(before));
}

std::string name_of(const ::testing::TestParamInfo<NamedModelOptions>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Families, OracleTest, ::testing::ValuesIn(all_random_models()), name_of);

}  // namespace
}  // namespace inferscale::testing
