#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace inferscale {
namespace {

TEST(Utf8Test, AcceptsEveryWellFormedLength) {
  EXPECT_EQ(find_invalid_utf8(""), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("plain ascii, longer than eight bytes"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("Zażółć gęślą jaźń, 日本語, 🦀 and more"),
            std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("\xf4\x8f\xbf\xbf"), std::string_view::npos);  // U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\xee\x80\x80"), std::string_view::npos);      // U+E000
  EXPECT_EQ(find_invalid_utf8(std::string("a\0b", 3)), std::string_view::npos);
}

TEST(Utf8Test, FindsTheFirstMalformedByte) {
  const std::pair<std::string, std::size_t> cases[] = {
      {"\x80", 0},              // continuation alone
      {"abcdefghij\xff", 10},   // never a byte of UTF-8
      {"ab\xc3", 2},            // cut
      {"ab\xe6\x97", 2},        // cut
      {"\xf0\x9f\xa6", 0},      // cut
      {"\xc0\xaf", 0},          // overlong
      {"\xc1\xbf", 0},          // overlong
      {"\xe0\x80\xaf", 0},      // overlong
      {"\xf0\x80\x80\xaf", 0},  // overlong
      {"\xed\xa0\x80", 0},      // surrogate
      {"x\xed\xbf\xbf", 1},     // surrogate
      {"\xf4\x90\x80\x80", 0},  // over U+10FFFF
      {"\xf5\x80\x80\x80", 0},  // over U+10FFFF
      {"\xc3\x28", 0},          // no continuation
      {"é\xe9", 2},             // Latin-1
  };
  for (const auto& [text, offset] : cases) {
    EXPECT_EQ(find_invalid_utf8(text), offset) << ::testing::PrintToString(text);
  }
}

TEST(Utf8Test, CheckTextNamesFieldAndReason) {
  EXPECT_TRUE(check_text("text", "fine", 4).ok());
  EXPECT_EQ(check_text("text", "", 4).message(), "text must not be empty");
  EXPECT_EQ(check_text("text", "fives", 4).message(), "text must be at most 4 bytes long, not 5");
  EXPECT_EQ(check_text("text", "a\xff", 4).message(), "text must be UTF-8; byte 1 is not");
  EXPECT_EQ(check_text("text", "", 4).code(), StatusCode::kInvalidArgument);
}

TEST(Utf8Test, PrefixNeverCutsACharacter) {
  EXPECT_EQ(utf8_prefix("abc", 5), "abc");
  EXPECT_EQ(utf8_prefix("abc", 2), "ab");
  EXPECT_EQ(utf8_prefix("aé", 2), "a");
  EXPECT_EQ(utf8_prefix("aé", 3), "aé");
  EXPECT_EQ(utf8_prefix("🦀", 3), "");
  EXPECT_EQ(utf8_prefix("x", 0), "");
}

TEST(Utf8Test, SingleLineFoldsSpaceAndControls) {
  EXPECT_EQ(single_line("  a\r\n\tb  "), "a b");
  EXPECT_EQ(single_line("a\xc2\x85"
                        "b\xe2\x80\xa8"
                        "c\xe2\x80\xa9"
                        "d"),
            "a b c d");
  EXPECT_EQ(single_line("a\xc2\xa0\xe3\x80\x80"
                        "b"),
            "a b");  // no-break, ideographic
  EXPECT_EQ(single_line(std::string("a\0b\x1b[31m", 8)), "a b [31m");
  EXPECT_EQ(single_line(" \n "), "");
  EXPECT_EQ(single_line("日本 語🦀"), "日本 語🦀");
  EXPECT_EQ(single_line("a\xff b"), "a\xff b");  // malformed bytes are not ours to judge
}

}  // namespace
}  // namespace inferscale
