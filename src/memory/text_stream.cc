#include "memory/text_stream.h"

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// How many bytes a sequence that starts with this byte has; 1 for bytes that start none.
std::size_t sequence_length(unsigned char lead) {
  if (lead >= 0xF0) {
    return 4;
  }
  return lead >= 0xE0 ? 3 : (lead >= 0xC0 ? 2 : 1);
}

}  // namespace

bool TextStream::push(TokenId token) {
  pending_ += tokenizer_.token_bytes(token);
  return emit(false);
}

std::string TextStream::finish() {
  emit(true);
  return std::move(text_);
}

bool TextStream::emit(bool at_end) {
  std::string ready;
  while (!pending_.empty()) {
    const std::size_t bad = find_invalid_utf8(pending_);
    if (bad == std::string_view::npos) {
      ready += pending_;
      pending_.clear();
      break;
    }
    ready += pending_.substr(0, bad);
    pending_.erase(0, bad);
    const std::size_t wanted = sequence_length(static_cast<unsigned char>(pending_.front()));
    if (!at_end && pending_.size() < wanted) {
      break;  // the rest of this code point comes with the next token
    }
    ready += kReplacement;
    pending_.erase(0, 1);
  }
  text_ += ready;
  return ready.empty() || !sink_ || sink_(ready);
}

}  // namespace inferscale
