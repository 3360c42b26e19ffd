#include "base/split_text.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace inferscale {
namespace {

std::string without_spaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' && c != '\n') {
      out += c;
    }
  }
  return out;
}

TEST(SplitText, ShortTextStaysWhole) {
  EXPECT_EQ(split_text("  One fact. \n", 100), std::vector<std::string>{"One fact."});
  EXPECT_TRUE(split_text(" \n", 100).empty());
}

TEST(SplitText, CutsAtSentencesAndLosesNothing) {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "Sentence number " + std::to_string(i) + " says something. ";
  }
  const std::vector<std::string> parts = split_text(text, 300);
  std::string joined;
  for (const std::string& part : parts) {
    EXPECT_LE(part.size(), 300U);
    EXPECT_EQ(part.back(), '.');
    joined += part;
  }
  EXPECT_EQ(without_spaces(joined), without_spaces(text));
}

TEST(SplitText, CutsTextWithoutSpacesBetweenCodePoints) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += "鳥";
  }
  std::string joined;
  for (const std::string& part : split_text(text, 100)) {
    EXPECT_LE(part.size(), 100U);
    EXPECT_EQ(find_invalid_utf8(part), std::string::npos);
    joined += part;
  }
  EXPECT_EQ(joined, text);
}

}  // namespace
}  // namespace inferscale
