#include <gtest/gtest.h>

#include "base/utf8.h"
#include "memory/text_stream.h"

namespace inferscale {
namespace {

// One token per byte: the worst case for joining code points.
class ByteTokenizer final : public Tokenizer {
 public:
  Result<std::vector<TokenId>> encode(std::string_view text, bool) const override {
    std::vector<TokenId> tokens;
    for (const char c : text) {
      tokens.push_back(static_cast<unsigned char>(c));
    }
    return tokens;
  }
  std::string token_bytes(TokenId token) const override {
    return std::string(1, static_cast<char>(token));
  }
  std::vector<TokenId> prompt_prefix() const override { return {}; }
  bool is_end_of_generation(TokenId) const override { return false; }
};

std::string stream_all(const std::string& bytes, std::vector<std::string>* pieces) {
  const ByteTokenizer tokenizer;
  TextStream stream(tokenizer, [pieces](std::string_view piece) {
    pieces->emplace_back(piece);
    return true;
  });
  const std::vector<TokenId> tokens = tokenizer.encode(bytes, false).value();
  for (const TokenId token : tokens) {
    EXPECT_TRUE(stream.push(token));
  }
  return stream.finish();
}

TEST(TextStream, HandsOutWholeCodePoints) {
  const std::string text = "Zoë ate 鳥よし 👍 end";
  std::vector<std::string> pieces;
  EXPECT_EQ(stream_all(text, &pieces), text);
  std::string joined;
  for (const std::string& piece : pieces) {
    EXPECT_EQ(find_invalid_utf8(piece), std::string::npos);
    joined += piece;
  }
  EXPECT_EQ(joined, text);
}

TEST(TextStream, MalformedBytesBecomeReplacementCharacters) {
  std::vector<std::string> pieces;
  EXPECT_EQ(stream_all("a\xff z\xe9\xb3", &pieces), "a\xEF\xBF\xBD z\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(TextStream, StopsWhenTheSinkSaysSo) {
  const ByteTokenizer tokenizer;
  TextStream stream(tokenizer, [](std::string_view) { return false; });
  EXPECT_FALSE(stream.push('x'));
  EXPECT_EQ(stream.finish(), "x");
}

}  // namespace
}  // namespace inferscale
