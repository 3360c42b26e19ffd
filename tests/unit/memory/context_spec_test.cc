#include "memory/context_spec.h"

#include <gtest/gtest.h>

#include <set>

#include "memory/primer.h"

namespace inferscale {
namespace {

TEST(ContextSpec, ParsesWhatItPrints) {
  for (const char* text : {"header", "primer:1", "primer:64", "window:8", "window:64", "names:8",
                           "turns:50", "near:8", "log:8", "chain:8", "alone"}) {
    auto spec = parse_context_spec(text);
    ASSERT_TRUE(spec.ok()) << text;
    EXPECT_EQ(spec->spelling(), text);
  }
}

TEST(ContextSpec, RefusesTheRestAndListsTheForms) {
  for (const char* text :
       {"", "window", "window:", "window:0", "window:65", "window:8x", "window:-1", "primer: 8",
        "prefix:5", "prefix", "header:1", "alone:1", "names", "window:99999999999999"}) {
    const auto spec = parse_context_spec(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(spec.status().message().find("window:N"), std::string::npos);
  }
}

TEST(Primer, LinesAreFactLinesAndDistinct) {
  const std::vector<std::string> lines = primer_lines(32);
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 32U);
  for (const std::string& line : lines) {
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    EXPECT_NE(line.find(": "), std::string::npos);
  }
  EXPECT_EQ(primer_lines(33).back(), lines.front());
}

}  // namespace
}  // namespace inferscale
