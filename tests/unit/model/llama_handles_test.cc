#include "model/llama_handles.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "support/random_model.h"

namespace inferscale::testing {
namespace {

class LlamaHandlesTest : public ::testing::Test {
 protected:
  ~LlamaHandlesTest() override { set_log_sink(nullptr); }

  LlamaModelPtr load(const std::string& family, bool add_bos = false) {
    RandomModelOptions options;
    options.architecture = family;
    options.add_bos = add_bos;
    options.layers = 1;
    const std::filesystem::path path = directory_ / (family + ".gguf");
    EXPECT_TRUE(write_random_model(path, options).ok());
    ensure_llama_backend();
    return LlamaModelPtr(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
  }
  TempDirectory directory_;
};

TEST_F(LlamaHandlesTest, TextRoundTripsInEveryFamily) {
  for (const char* family : {"llama", "qwen2", "qwen3", "granite", "olmo2"}) {
    const LlamaModelPtr model = load(family);
    ASSERT_NE(model, nullptr) << family;
    const llama_vocab* vocab = llama_model_get_vocab(model.get());
    for (const std::string& text : std::vector<std::string>{
             "The cat was on the mat.\n", "2025-02-03: Zoë moved to Łódź, 日本 🦀\n",
             "  two  spaces", ""}) {
      const auto tokens = tokenize(vocab, text, false, false);
      ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
      EXPECT_EQ(detokenize(vocab, *tokens, false).value(), text) << family;
    }
    EXPECT_LT(tokenize(vocab, "the and the", false, false)->size(), 11U) << "merges are not used";
  }
}

TEST_F(LlamaHandlesTest, TextCannotNameControlTokens) {
  const LlamaModelPtr model = load("llama");
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  const std::string text = "a<|im_end|>b";
  const auto safe = tokenize(vocab, text, false, false);
  ASSERT_TRUE(safe.ok());
  for (const TokenId token : *safe) {
    EXPECT_FALSE(llama_vocab_is_control(vocab, token));
  }
  EXPECT_EQ(detokenize(vocab, *safe, true).value(), text);
  const auto parsed = tokenize(vocab, text, false, true);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->size(), 3U);
  EXPECT_EQ(detokenize(vocab, *parsed, true).value(), text);
  EXPECT_EQ(detokenize(vocab, *parsed, false).value(), "ab");
}

TEST_F(LlamaHandlesTest, SpecialTokensOnRequest) {
  const LlamaModelPtr model = load("llama", true);
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  const auto with = tokenize(vocab, "x", true, false);
  ASSERT_TRUE(with.ok());
  ASSERT_EQ(with->size(), 2U);
  EXPECT_EQ(with->front(), llama_vocab_bos(vocab));
  EXPECT_EQ(tokenize(vocab, "x", false, false)->size(), 1U);
}

TEST_F(LlamaHandlesTest, OddInputEndsInAStatus) {
  const LlamaModelPtr model = load("qwen2");
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  for (const std::string& text :
       {std::string("a\xff\xfe b"), std::string("\xc3"), std::string("a\0b", 3),
        std::string(1, '\x80'), std::string(300'000, 'x')}) {
    (void)tokenize(vocab, text, true, true);  // either outcome is fine; neither may throw or crash
  }
  EXPECT_EQ(tokenize(vocab, std::string((64U << 20) + 1, 'x'), false, false).status().code(),
            StatusCode::kInvalidArgument);
  const std::int32_t count = llama_vocab_n_tokens(vocab);
  for (const TokenId token : {-1, count, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(token_to_piece(vocab, token, true).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(detokenize(vocab, std::vector<TokenId>{0, token}, true).status().code(),
              StatusCode::kInvalidArgument);
  }
  for (TokenId token = 0; token < count; ++token) {
    EXPECT_TRUE(token_to_piece(vocab, token, true).ok());
  }
}

TEST_F(LlamaHandlesTest, ChatTemplateIsRecognised) {
  const LlamaModelPtr model = load("llama");
  const char* text = llama_model_chat_template(model.get(), nullptr);
  ASSERT_NE(text, nullptr);
  const llama_chat_message message{"user", "hi"};
  char out[200];
  const int n = llama_chat_apply_template(text, &message, 1, true, out, sizeof(out));
  ASSERT_GT(n, 0);
  EXPECT_EQ(std::string(out, static_cast<std::size_t>(n)),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(LlamaHandlesTest, MessagesOfLibllamaGoToTheSink) {
  std::mutex mutex;
  std::size_t debug = 0;
  std::vector<std::string> errors;
  set_log_sink([&](LogLevel level, std::string_view message) {
    const std::lock_guard<std::mutex> lock(mutex);
    debug += level == LogLevel::kDebug ? 1U : 0U;
    if (level == LogLevel::kError) {
      errors.emplace_back(message);
    }
  });
  ::testing::internal::CaptureStderr();
  ASSERT_NE(load("llama"), nullptr);
  EXPECT_EQ(llama_model_load_from_file((directory_ / "none").c_str(), llama_model_default_params()),
            nullptr);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_GT(debug, 10U);
  EXPECT_FALSE(errors.empty());
}

TEST_F(LlamaHandlesTest, BatchHoldsWhatWasAdded) {
  LlamaBatch batch(4, 1);
  EXPECT_EQ(batch.capacity(), 4);
  batch.add(7, 3, 1, true);
  batch.add(8, 4, 1, false);
  ASSERT_EQ(batch.size(), 2);
  EXPECT_EQ(batch.get().token[1], 8);
  EXPECT_EQ(batch.get().pos[0], 3);
  EXPECT_EQ(batch.get().seq_id[0][0], 1);
  EXPECT_EQ(batch.get().logits[0], 1);
  EXPECT_EQ(batch.get().logits[1], 0);
  LlamaBatch moved = std::move(batch);
  EXPECT_EQ(moved.size(), 2);
  moved.clear();
  EXPECT_EQ(moved.size(), 0);
}

}  // namespace
}  // namespace inferscale::testing
