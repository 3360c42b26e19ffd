#include "model/gguf_vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "base/utf8.h"

namespace inferscale {
namespace {

// Below, libllama's default special tokens do not exist and adding one aborts.
constexpr std::size_t kFewestTokens = 32;
constexpr std::size_t kMostTokens = 1 << 22;

Status damaged(const GgufFile& file, const char* what) {
  return data_loss(fmt::format("the tokenizer of model {} {}", file.path().string(), what));
}

Status check_tokens_distinct(const GgufFile& file, const std::vector<std::string>& tokens) {
  std::unordered_set<std::string_view> seen;
  seen.reserve(tokens.size());
  std::size_t empty = 0;  // libllama gives each of these a name of its own
  for (const std::string& token : tokens) {
    if (token.empty()) {
      ++empty;
    } else {
      seen.insert(token);
    }
  }
  if (seen.size() + empty != tokens.size()) {
    return damaged(file, "names a token twice");
  }
  return Status();
}

Status check_merges(const GgufFile& file) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto merges, file.texts("tokenizer.ggml.merges"));
  if (!merges) {
    return damaged(file, "is of the byte-pair kind but has no merges");
  }
  const bool split = std::all_of(merges->begin(), merges->end(), [](const std::string& merge) {
    const std::size_t space = merge.find(' ', 1);
    return space != std::string::npos && space + 1 < merge.size();
  });
  return split ? Status() : damaged(file, "has a merge that is not two parts with a space between");
}

}  // namespace

Result<std::uint32_t> check_vocabulary(const GgufFile& file) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto model, file.text("tokenizer.ggml.model"));
  const std::string kind = model.value_or("");
  if (kind.empty()) {
    return damaged(file, "is missing (tokenizer.ggml.model)");
  }
  if (kind != "llama" && kind != "gpt2") {
    return unsupported(
        fmt::format("model {} has tokenizer \"{}\"; supported are llama (SentencePiece) and gpt2 "
                    "(byte-pair)",
                    file.path().string(), utf8_prefix(kind, 32)));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto tokens, file.texts("tokenizer.ggml.tokens"));
  if (!tokens || tokens->size() < kFewestTokens || tokens->size() > kMostTokens) {
    return damaged(file, "has no list of 32 to 4194304 tokens");
  }
  INFERSCALE_RETURN_IF_ERROR(check_tokens_distinct(file, *tokens));
  if (kind == "gpt2") {
    INFERSCALE_RETURN_IF_ERROR(check_merges(file));
  }
  return static_cast<std::uint32_t>(tokens->size());
}

}  // namespace inferscale
