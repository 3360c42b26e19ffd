#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/bench/statistics.h"
#include "cli/option_values.h"
#include "cli/terminal_text.h"
#include "cli/text_table.h"

namespace inferscale::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Sizes, ReadsUnits) {
  EXPECT_EQ(*parse_size("--x", "0"), 0U);
  EXPECT_EQ(*parse_size("--x", "4096"), 4096U);
  EXPECT_EQ(*parse_size("--x", "512MiB"), 512ULL << 20);
  EXPECT_EQ(*parse_size("--x", "1.5GiB"), 1536ULL << 20);
  EXPECT_EQ(*parse_size("--x", "8GB"), 8'000'000'000ULL);
}

TEST(Sizes, RefusesTheRestAndNamesTheField) {
  for (const char* text :
       {"", "GiB", "-1", "1 GiB", "1gib", "1..5GiB", "1e3", "nan", "99999999999TiB", "1GiBx"}) {
    const auto size = parse_size("--host-budget", text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_THAT(size.status().message(), HasSubstr("--host-budget"));
  }
}

TEST(Sizes, PrintsForPeople) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(645120), "630 KiB");
  EXPECT_EQ(format_size(1536ULL << 20), "1.5 GiB");
}

TEST(TopJ, IsAutoOrANumber) {
  EXPECT_FALSE(parse_top_j("auto")->has_value());
  EXPECT_EQ(**parse_top_j("0"), 0U);
  EXPECT_EQ(**parse_top_j("1000"), 1000U);
  for (const char* text : {"", "-1", "1001", "4x", "AUTO", "4294967297"}) {
    EXPECT_FALSE(parse_top_j(text).ok()) << text;
  }
}

TEST(Numbers, AreAListWithinLimits) {
  EXPECT_THAT(*parse_numbers("--k", "0,5,50", 0, 100), ElementsAre(0U, 5U, 50U));
  for (const char* text : {"", ",", "5,", "5,,6", "101", "a", "5, 6", "5,0,5"}) {
    EXPECT_FALSE(parse_numbers("--k", text, 0, 100).ok()) << text;
  }
}

TEST(Terminal, ReplacesControlsAndBadBytes) {
  EXPECT_EQ(printable("plain\ttext\n"), "plain\ttext\n");
  EXPECT_EQ(printable("\x1b[31m"), "\uFFFD[31m");
  EXPECT_EQ(printable("a\xFF"
                      "b\xC3"),
            "a\uFFFDb\uFFFD");
  EXPECT_EQ(printable("\u202Eevil\u0085"), "\uFFFDevil\uFFFD");
  EXPECT_EQ(printable("Łukasz 鳥よし"), "Łukasz 鳥よし");
}

TEST(Terminal, MeasuresAndBreaksWhatItShows) {
  EXPECT_EQ(display_width("Łukasz"), 6U);
  EXPECT_EQ(display_width("鳥よし"), 6U);
  EXPECT_EQ(display_width("e\u0301"), 1U);
  EXPECT_THAT(wrap_text("one two three", 8), ElementsAre("one two", "three"));
  EXPECT_THAT(wrap_text("abcdefgh", 4), ElementsAre("abcd", "efgh"));
  EXPECT_THAT(wrap_text("鳥鳥鳥", 4), ElementsAre("鳥鳥", "鳥"));
  EXPECT_THAT(wrap_text("", 4), ElementsAre(""));
  EXPECT_EQ(shorten("a long line", 6), "a lon…");
  EXPECT_EQ(shorten("short", 6), "short");
}

TEST(Table, AlignsWrapsAndStaysWithinItsWidth) {
  TextTable table({{"k", Align::kRight}, {"text", Align::kLeft, true}, {"ms", Align::kRight}});
  table.add_row({"5", "some words that do not fit on one line of the table", "12"});
  table.add_row({"50", "鳥よし", "3"});
  EXPECT_EQ(table.render(30),
            " k  text                    ms\n"
            "--  ----------------------  --\n"
            " 5  some words that do not  12\n"
            "    fit on one line of the\n"
            "    table\n"
            "50  鳥よし                   3\n");
}

TEST(Statistics, OfFewSamples) {
  EXPECT_DOUBLE_EQ(median({}), 0);
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({1, 2}), 1.5);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40}, 0.95), 38);
  const auto [low, high] = ratio_interval({10, 20, 30}, {1, 2, 3}, 1);
  EXPECT_GE(low, 3.3);
  EXPECT_LE(high, 30);
  EXPECT_LE(low, 10);
  EXPECT_GE(high, 10);
}

}  // namespace
}  // namespace inferscale::cli
