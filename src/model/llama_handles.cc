#include "model/llama_handles.h"

#include <fmt/format.h>

#include <cassert>
#include <exception>
#include <mutex>

#include "model/ggml_log.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxTextBytes = 64U << 20;
// Tokens that a tokenizer may put around a text, and the space that some put before it.
constexpr std::size_t kSpecialTokens = 8;

}  // namespace

void ensure_llama_backend() {
  static std::once_flag once;
  std::call_once(once, [] {
    route_ggml_log();  // so that a later call of it does not replace ours
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) { forward_ggml_log(level, text); },
        nullptr);
    llama_backend_init();
  });
}

void LlamaBatch::add(TokenId token, llama_pos position, llama_seq_id sequence, bool wants_logits) {
  assert(batch_.n_tokens < capacity_);
  const std::int32_t i = batch_.n_tokens++;
  batch_.token[i] = token;
  batch_.pos[i] = position;
  batch_.n_seq_id[i] = 1;
  batch_.seq_id[i][0] = sequence;
  batch_.logits[i] = wants_logits ? 1 : 0;
}

Result<std::vector<TokenId>> tokenize(const llama_vocab* vocab, std::string_view text,
                                      bool add_special, bool parse_special) {
  if (text.size() > kMaxTextBytes) {
    return invalid_argument(fmt::format("text to tokenise must be at most {} bytes long, not {}",
                                        kMaxTextBytes, text.size()));
  }
  try {
    std::vector<TokenId> tokens(text.size() + kSpecialTokens);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::int32_t n =
          llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                         static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
      if (n >= 0) {
        tokens.resize(static_cast<std::size_t>(n));
        return tokens;
      }
      if (n == INT32_MIN) {
        break;
      }
      tokens.resize(static_cast<std::size_t>(-n));
    }
    return invalid_argument("the text has more tokens than can be counted");
  } catch (const std::exception& error) {  // libllama's tokenizers throw through its C interface
    return invalid_argument(fmt::format("the text cannot be tokenised: {}", error.what()));
  }
}

Result<std::string> token_to_piece(const llama_vocab* vocab, TokenId token, bool render_special) {
  if (token < 0 || token >= llama_vocab_n_tokens(vocab)) {
    return invalid_argument(
        fmt::format("token id must be in 0..{}, not {}", llama_vocab_n_tokens(vocab) - 1, token));
  }
  try {
    std::string piece(32, '\0');
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::int32_t n = llama_token_to_piece(
          vocab, token, piece.data(), static_cast<std::int32_t>(piece.size()), 0, render_special);
      if (n >= 0) {
        piece.resize(static_cast<std::size_t>(n));
        return piece;
      }
      piece.resize(static_cast<std::size_t>(-n));
    }
    return internal_error(fmt::format("token {} has no piece", token));
  } catch (const std::exception& error) {
    return invalid_argument(fmt::format("token {} has no text: {}", token, error.what()));
  }
}

Result<std::string> detokenize(const llama_vocab* vocab, std::span<const TokenId> tokens,
                               bool render_special) {
  std::string text;
  for (const TokenId token : tokens) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::string piece,
                                token_to_piece(vocab, token, render_special));
    text += piece;
  }
  return text;
}

}  // namespace inferscale
