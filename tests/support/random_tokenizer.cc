#include "support/random_tokenizer.h"

#include <gguf.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

namespace inferscale::testing {
namespace {

// "Ġ" is how byte-level BPE writes a space. Each merge's result is a token; parts come first.
constexpr std::string_view kMerges[] = {
    "Ġ t",   "h e", "i n",  "Ġt he", "Ġ a",  "e r",   "o n",   "r e",  "a n",  "Ġ s",
    "a t",   "e n", "o r",  "Ġ w",   "Ġ o",  "i s",   "Ġ m",   "Ġ b",  "Ġ c",  "Ġ h",
    "e s",   "n d", "i t",  "a l",   "Ġ f",  "Ġ p",   "in g",  "o u",  "an d", "Ġ d",
    "l l",   "e d", "Ġ in", "a r",   "l e",  "Ġ to",  "Ġo f",  "m e",  "s e",  "v e",
    "Ġ is",  "a s", "i c",  "Ġ he",  "o m",  "Ġw as", "Ġa nd", "Ġm e", "u s",  "e l",
    "Ġs he", "Ċ Ċ", "u r",  "i d",   "Ġ on", "st er", "s t"};
constexpr const char* kSpecials[] = {"<|endoftext|>", "<s>", "<|im_start|>", "<|im_end|>"};
constexpr std::uint32_t kSpecialCount = 4;
constexpr std::uint32_t kByteCount = 256;

constexpr std::int32_t kNormal = 1;
constexpr std::int32_t kControl = 3;

// ChatML, in the wording by which libllama recognises it.
constexpr const char* kChatTemplate =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
    "}}{% endif %}";

std::string encode_utf8(std::uint32_t c) {  // below U+0800
  if (c < 0x80) {
    return std::string(1, static_cast<char>(c));
  }
  return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
}

/// GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 onwards.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  std::uint32_t next = 0x100;
  for (std::uint32_t byte = 0; byte < kByteCount; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    tokens.push_back(encode_utf8(printable ? byte : next++));
  }
  return tokens;
}

std::vector<std::string> ordered_merges() {
  std::vector<std::string> merges(std::begin(kMerges), std::end(kMerges));
  std::swap(merges[merges.size() - 1], merges[merges.size() - 2]);  // "st" before "ster"
  return merges;
}

const char* pretokenizer(const std::string& family) {
  if (family == "llama") return "smollm";
  if (family == "granite") return "refact";
  if (family == "olmo2") return "dbrx";
  return "qwen2";
}

void set_texts(gguf_context* gguf, const char* key, const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(text.c_str());
  }
  gguf_set_arr_str(gguf, key, pointers.data(), pointers.size());
}

}  // namespace

std::uint32_t random_vocab_size() {
  return kSpecialCount + kByteCount + static_cast<std::uint32_t>(std::size(kMerges));
}

void set_tokenizer(gguf_context* gguf, const std::string& family, bool add_bos) {
  std::vector<std::string> tokens(std::begin(kSpecials), std::end(kSpecials));
  for (std::string& token : byte_tokens()) {
    tokens.push_back(std::move(token));
  }
  const std::vector<std::string> merges = ordered_merges();
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  std::vector<std::int32_t> types(tokens.size(), kNormal);
  std::fill_n(types.begin(), kSpecialCount, kControl);

  gguf_set_val_str(gguf, "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(gguf, "tokenizer.ggml.pre", pretokenizer(family));
  set_texts(gguf, "tokenizer.ggml.tokens", tokens);
  set_texts(gguf, "tokenizer.ggml.merges", merges);
  gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", 1);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", 3);
  gguf_set_val_u32(gguf, "tokenizer.ggml.padding_token_id", 0);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", add_bos);
  gguf_set_val_str(gguf, "tokenizer.chat_template", kChatTemplate);
}

}  // namespace inferscale::testing
