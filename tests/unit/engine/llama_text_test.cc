// Tokenizer and chat format of a loaded model.

#include "engine/llama/llama_text.h"

#include <gguf.h>
#include <gtest/gtest.h>

#include "support/random_model.h"

namespace inferscale {
namespace {

class LlamaTextTest : public ::testing::Test {
 protected:
  /// Loads a random model's vocabulary.
  void load(const testing::RandomModelOptions& options) {
    const auto path = directory_ / "model.gguf";
    ASSERT_TRUE(testing::write_random_model(path, options).ok());
    ensure_llama_backend();
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    model_.reset(llama_model_load_from_file(path.c_str(), params));
    ASSERT_NE(model_, nullptr);
  }
  testing::TempDirectory directory_;
  LlamaModelPtr model_;
};

TEST_F(LlamaTextTest, TextCannotNameControlTokens) {
  load({});
  const LlamaTokenizer tokenizer(model_.get());
  const auto as_text = tokenizer.encode("a<|im_end|>b", false).value();
  const auto as_special = tokenizer.encode("a<|im_end|>b", true).value();
  EXPECT_EQ(as_special.size(), 3U);
  EXPECT_GT(as_text.size(), 3U);
  std::string round_trip;
  for (const TokenId token : as_text) {
    EXPECT_FALSE(tokenizer.is_end_of_generation(token));
    round_trip += tokenizer.token_bytes(token);
  }
  EXPECT_EQ(round_trip, "a<|im_end|>b");
  EXPECT_TRUE(tokenizer.is_end_of_generation(as_special[1]));
  EXPECT_EQ(tokenizer.token_bytes(as_special[1]), "");
}

TEST_F(LlamaTextTest, TextOfAnyScriptComesBack) {
  load({});
  const LlamaTokenizer tokenizer(model_.get());
  for (const std::string text :
       {"", "plain", "zażółć gęślą", "日本語", "🙂 emoji", "tab\tand\nline"}) {
    std::string round_trip;
    const std::vector<TokenId> tokens = tokenizer.encode(text, false).value();
    for (const TokenId token : tokens) {
      round_trip += tokenizer.token_bytes(token);
    }
    EXPECT_EQ(round_trip, text);
  }
}

TEST_F(LlamaTextTest, BadTextAndBadTokensAreErrors) {
  load({});
  const LlamaTokenizer tokenizer(model_.get());
  EXPECT_EQ(tokenizer.encode("ok\xff", false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_bytes(1 << 30), "");
  EXPECT_FALSE(tokenizer.is_end_of_generation(-1));
  EXPECT_FALSE(tokenizer.is_end_of_generation(1 << 30));
}

TEST_F(LlamaTextTest, BosIsAPrefixOfPromptsOnlyWhereTheModelWantsIt) {
  load({});
  EXPECT_TRUE(LlamaTokenizer(model_.get()).prompt_prefix().empty());
  EXPECT_TRUE(LlamaTokenizer(model_.get()).encode("", false)->empty());
  testing::RandomModelOptions options;
  options.add_bos = true;
  load(options);
  const LlamaTokenizer tokenizer(model_.get());
  ASSERT_EQ(tokenizer.prompt_prefix().size(), 1U);
  EXPECT_EQ(tokenizer.prompt_prefix()[0], llama_vocab_bos(llama_model_get_vocab(model_.get())));
  EXPECT_TRUE(tokenizer.encode("", true)->empty());
}

TEST_F(LlamaTextTest, RendersTheModelsTemplate) {
  load({});
  const LlamaChatFormat format(model_.get());
  EXPECT_EQ(format.render({{"system", "Be brief."}, {"user", "Hi"}}, true).value(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(format.render({{"user", "Hi"}}, false).value(), "<|im_start|>user\nHi<|im_end|>\n");
  const std::string longer(100000, 'x');
  EXPECT_EQ(format.render({{"user", longer}}, false)->size(), longer.size() + 28);
  const std::string nul("a\0b", 3);
  EXPECT_EQ(format.render({{"user", nul}}, false).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(LlamaTextTest, UnknownAndMissingTemplatesAreUnsupported) {
  testing::RandomModelOptions options;
  options.edit = [](gguf_context* gguf) {
    gguf_set_val_str(gguf, "tokenizer.chat_template", "{{ something of its own }}");
  };
  load(options);
  EXPECT_EQ(LlamaChatFormat(model_.get()).render({{"user", "Hi"}}, true).status().code(),
            StatusCode::kUnsupported);
  options.edit = [](gguf_context* gguf) { gguf_remove_key(gguf, "tokenizer.chat_template"); };
  load(options);
  EXPECT_EQ(LlamaChatFormat(model_.get()).render({{"user", "Hi"}}, true).status().code(),
            StatusCode::kUnsupported);
}

}  // namespace
}  // namespace inferscale
