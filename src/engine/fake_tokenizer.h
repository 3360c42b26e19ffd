#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "prompt/tokenizer.h"

namespace inferscale {

/// One token per byte, and three control tokens: enough to build prompts without a model.
class FakeTokenizer final : public Tokenizer {
 public:
  static constexpr TokenId kBegin = 256;         ///< <s>, before every prompt
  static constexpr TokenId kMessageStart = 257;  ///< <|im_start|>
  static constexpr TokenId kMessageEnd = 258;    ///< <|im_end|>, ends a generation
  static constexpr std::uint32_t kVocabSize = 259;

  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    bool parse_special) const override;
  [[nodiscard]] std::string token_bytes(TokenId token) const override;
  [[nodiscard]] std::vector<TokenId> prompt_prefix() const override { return {kBegin}; }
  [[nodiscard]] bool is_end_of_generation(TokenId token) const override {
    return token == kMessageEnd;
  }
};

/// ChatML.
class FakeChatFormat final : public ChatFormat {
 public:
  [[nodiscard]] Result<std::string> render(const std::vector<ChatMessage>& messages,
                                           bool open_reply) const override;
};

}  // namespace inferscale
