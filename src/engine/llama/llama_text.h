#pragma once

#include <string>
#include <vector>

#include "model/llama_handles.h"
#include "prompt/tokenizer.h"

namespace inferscale {

/// The tokenizer of a loaded model, which must outlive it.
class LlamaTokenizer final : public Tokenizer {
 public:
  explicit LlamaTokenizer(const llama_model* model) : vocab_(llama_model_get_vocab(model)) {}
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    bool parse_special) const override;
  [[nodiscard]] std::string token_bytes(TokenId token) const override;
  [[nodiscard]] std::vector<TokenId> prompt_prefix() const override;
  [[nodiscard]] bool is_end_of_generation(TokenId token) const override;

 private:
  const llama_vocab* vocab_;
};

/// The chat template that a model carries, rendered by libllama's built-in formats (no Jinja).
class LlamaChatFormat final : public ChatFormat {
 public:
  explicit LlamaChatFormat(const llama_model* model);
  [[nodiscard]] Result<std::string> render(const std::vector<ChatMessage>& messages,
                                           bool open_reply) const override;

 private:
  std::string template_;
};

}  // namespace inferscale
