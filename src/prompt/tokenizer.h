#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// The served model's tokenizer. Thread-safe, immutable.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// With `parse_special` false, text that looks like a control token stays text: facts and user
  /// text always go that way, so that they cannot inject control tokens. Never adds BOS by itself.
  /// Errors: kInvalidArgument.
  [[nodiscard]] virtual Result<std::vector<TokenId>> encode(std::string_view text,
                                                            bool parse_special) const = 0;
  /// The bytes of one token (may be part of a UTF-8 sequence); control tokens give an empty string.
  [[nodiscard]] virtual std::string token_bytes(TokenId token) const = 0;
  /// Tokens that every prompt begins with (BOS), or none.
  [[nodiscard]] virtual std::vector<TokenId> prompt_prefix() const = 0;
  [[nodiscard]] virtual bool is_end_of_generation(TokenId token) const = 0;
};

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant"
  std::string content;
};

/// The served model's chat format. Thread-safe, immutable.
class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  /// Renders messages, with the opening of an assistant reply at the end when `open_reply`.
  /// Errors: kUnsupported when the model's template is none of libllama's built-in ones.
  [[nodiscard]] virtual Result<std::string> render(const std::vector<ChatMessage>& messages,
                                                   bool open_reply) const = 0;
};

}  // namespace inferscale
