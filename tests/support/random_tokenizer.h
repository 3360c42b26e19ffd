#pragma once

#include <cstdint>
#include <string>

struct gguf_context;

namespace inferscale::testing {

/// Number of tokens of the vocabulary that `set_tokenizer` writes.
[[nodiscard]] std::uint32_t random_vocab_size();

/// Writes vocabulary, merges, special tokens and chat template. `family` picks the rule by which
/// text is cut before merging, as the family's own models do.
void set_tokenizer(gguf_context* gguf, const std::string& family, bool add_bos);

}  // namespace inferscale::testing
