#include "engine/llama/llama_text.h"

#include <fmt/core.h>

#include <limits>

#include "base/utf8.h"

namespace inferscale {

Result<std::vector<TokenId>> LlamaTokenizer::encode(std::string_view text,
                                                    bool parse_special) const {
  // libllama would replace malformed bytes silently: the text would not be the one that was stored.
  const std::size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    return invalid_argument(fmt::format("text: byte {} is not UTF-8", invalid));
  }
  return tokenize(vocab_, text, /*add_special=*/false, parse_special);
}

std::string LlamaTokenizer::token_bytes(TokenId token) const {
  Result<std::string> piece = token_to_piece(vocab_, token, /*render_special=*/false);
  return piece.ok() ? std::move(piece).value() : std::string();
}

std::vector<TokenId> LlamaTokenizer::prompt_prefix() const {
  const llama_token bos = llama_vocab_bos(vocab_);
  if (!llama_vocab_get_add_bos(vocab_) || bos == LLAMA_TOKEN_NULL) {
    return {};
  }
  return {bos};
}

bool LlamaTokenizer::is_end_of_generation(TokenId token) const {
  return token >= 0 && token < llama_vocab_n_tokens(vocab_) && llama_vocab_is_eog(vocab_, token);
}

LlamaChatFormat::LlamaChatFormat(const llama_model* model) {
  const char* text = llama_model_chat_template(model, nullptr);
  template_ = text != nullptr ? text : "";
}

Result<std::string> LlamaChatFormat::render(const std::vector<ChatMessage>& messages,
                                            bool open_reply) const {
  if (template_.empty()) {
    return unsupported("the model carries no chat template");
  }
  std::vector<llama_chat_message> chat;
  std::size_t bytes = 256;
  for (const ChatMessage& message : messages) {
    // The C API ends strings at the first NUL: text behind it would vanish.
    if (message.role.find('\0') != std::string::npos ||
        message.content.find('\0') != std::string::npos) {
      return invalid_argument("messages: a NUL character cannot be rendered");
    }
    bytes += 2 * (message.role.size() + message.content.size()) + 64;
    chat.push_back({message.role.c_str(), message.content.c_str()});
  }
  std::string text;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (bytes > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
      return invalid_argument("messages: too long to render");
    }
    text.resize(bytes);
    const std::int32_t size =
        llama_chat_apply_template(template_.c_str(), chat.data(), chat.size(), open_reply,
                                  text.data(), static_cast<std::int32_t>(bytes));
    if (size < 0) {
      return unsupported("the model's chat template is none of libllama's built-in ones");
    }
    if (static_cast<std::size_t>(size) <= bytes) {
      text.resize(static_cast<std::size_t>(size));
      return text;
    }
    bytes = static_cast<std::size_t>(size);
  }
  return internal_error("libllama's chat template changed its size");
}

}  // namespace inferscale
