#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "prompt/tokenizer.h"

namespace inferscale {

/// Joins token bytes and hands out whole UTF-8 sequences: a code point may span several tokens.
/// Malformed bytes become U+FFFD. One thread at a time.
class TextStream {
 public:
  using Sink = std::function<bool(std::string_view)>;
  /// Borrows the tokenizer. `sink` may be empty.
  TextStream(const Tokenizer& tokenizer, Sink sink)
      : tokenizer_(tokenizer), sink_(std::move(sink)) {}
  /// False when the sink wants no more.
  bool push(TokenId token);
  /// Emits what is left and returns the whole text.
  [[nodiscard]] std::string finish();

 private:
  bool emit(bool at_end);
  const Tokenizer& tokenizer_;
  Sink sink_;
  std::string pending_;
  std::string text_;
};

}  // namespace inferscale
