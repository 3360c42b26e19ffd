#pragma once

#include <llama.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// Starts libllama once per process and sends its messages to `log_message`. Call before anything
/// else of libllama. Thread-safe.
void ensure_llama_backend();

struct LlamaDeleter {
  void operator()(llama_model* model) const noexcept { llama_model_free(model); }
  void operator()(llama_context* context) const noexcept { llama_free(context); }
  void operator()(llama_sampler* sampler) const noexcept { llama_sampler_free(sampler); }
};
using LlamaModelPtr = std::unique_ptr<llama_model, LlamaDeleter>;
/// Must be destroyed before its model.
using LlamaContextPtr = std::unique_ptr<llama_context, LlamaDeleter>;
/// Not for samplers that were added to a chain: the chain owns those.
using LlamaSamplerPtr = std::unique_ptr<llama_sampler, LlamaDeleter>;

/// Owns a llama_batch of `llama_batch_init`. Movable.
class LlamaBatch {
 public:
  LlamaBatch(std::int32_t capacity, std::int32_t max_sequences)
      : batch_(llama_batch_init(capacity, 0, max_sequences)), capacity_(capacity) {}
  LlamaBatch(LlamaBatch&& other) noexcept
      : batch_(std::exchange(other.batch_, llama_batch{})),
        capacity_(std::exchange(other.capacity_, 0)) {}
  LlamaBatch& operator=(LlamaBatch&& other) noexcept {
    std::swap(batch_, other.batch_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~LlamaBatch() {
    if (batch_.token != nullptr) {
      llama_batch_free(batch_);
    }
  }

  void clear() { batch_.n_tokens = 0; }
  /// REQUIRES: size() < capacity().
  void add(TokenId token, llama_pos position, llama_seq_id sequence, bool wants_logits);
  [[nodiscard]] std::int32_t size() const { return batch_.n_tokens; }
  [[nodiscard]] std::int32_t capacity() const { return capacity_; }
  [[nodiscard]] const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
  std::int32_t capacity_;
};

/// Token ids of UTF-8 text. `add_special` adds what the model puts around a text (BOS and the
/// like); `parse_special` lets the text itself name control tokens: never for text that comes from
/// users. Thread-safe. Errors: kInvalidArgument (over 64 MiB, or refused by the tokenizer).
[[nodiscard]] Result<std::vector<TokenId>> tokenize(const llama_vocab* vocab, std::string_view text,
                                                    bool add_special, bool parse_special);

/// Bytes of one token; they may be part of a character. Control tokens give "" unless
/// `render_special`. Errors: kInvalidArgument (no such token).
[[nodiscard]] Result<std::string> token_to_piece(const llama_vocab* vocab, TokenId token,
                                                 bool render_special);

/// The text of tokens: their pieces in a row. Errors: kInvalidArgument (no such token).
[[nodiscard]] Result<std::string> detokenize(const llama_vocab* vocab,
                                             std::span<const TokenId> tokens, bool render_special);

}  // namespace inferscale
