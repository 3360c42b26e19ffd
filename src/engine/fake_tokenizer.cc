#include "engine/fake_tokenizer.h"

#include <fmt/core.h>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::string_view kNames[] = {"<s>", "<|im_start|>", "<|im_end|>"};

/// The control token whose name `text` starts with, or -1.
int control_at(std::string_view text) {
  for (int i = 0; i < 3; ++i) {
    if (text.substr(0, kNames[i].size()) == kNames[i]) {
      return i;
    }
  }
  return -1;
}

}  // namespace

Result<std::vector<TokenId>> FakeTokenizer::encode(std::string_view text,
                                                   bool parse_special) const {
  const std::size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    return invalid_argument(fmt::format("text: byte {} is not UTF-8", invalid));
  }
  std::vector<TokenId> tokens;
  tokens.reserve(text.size());
  while (!text.empty()) {
    const int control = parse_special ? control_at(text) : -1;
    tokens.push_back(control >= 0 ? kBegin + control : static_cast<unsigned char>(text[0]));
    text.remove_prefix(control >= 0 ? kNames[control].size() : 1);
  }
  return tokens;
}

std::string FakeTokenizer::token_bytes(TokenId token) const {
  return token >= 0 && token < kBegin ? std::string(1, static_cast<char>(token)) : std::string();
}

Result<std::string> FakeChatFormat::render(const std::vector<ChatMessage>& messages,
                                           bool open_reply) const {
  std::string text;
  for (const ChatMessage& message : messages) {
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", message.role, message.content);
  }
  return open_reply ? text + "<|im_start|>assistant\n" : text;
}

}  // namespace inferscale
