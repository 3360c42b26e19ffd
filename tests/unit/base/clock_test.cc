#include "base/clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr TimestampUs kSecond = 1'000'000;

TEST(ClockTest, FormatsZoneAndFraction) {
  EXPECT_EQ(format_rfc3339(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(format_rfc3339(1'738'571'400 * kSecond, 60), "2025-02-03T09:30:00+01:00");
  EXPECT_EQ(format_rfc3339(1'738'571'400 * kSecond, -570), "2025-02-02T23:00:00-09:30");
  EXPECT_EQ(format_rfc3339(500'000), "1970-01-01T00:00:00.500Z");
  EXPECT_EQ(format_rfc3339(1), "1970-01-01T00:00:00.000001Z");
  EXPECT_EQ(format_rfc3339(-1), "1969-12-31T23:59:59.999999Z");
}

TEST(ClockTest, FormatStaysInsideFourDigitYears) {
  EXPECT_EQ(format_rfc3339(INT64_MIN, -1439), "0001-01-01T00:00:00-23:59");
  EXPECT_EQ(format_rfc3339(INT64_MAX, 1439), "9999-12-31T23:59:59.999999+23:59");
}

TEST(ClockTest, RoundTrips) {
  for (const char* text :
       {"2025-02-03T09:30:00+01:00", "2025-02-03T08:30:00Z", "2024-02-29T23:59:59.123Z",
        "1969-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
        "2000-02-29T00:00:00-11:30", "1900-03-01T12:00:00+05:45"}) {
    const auto parsed = parse_rfc3339(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(format_rfc3339(parsed->time, parsed->offset_minutes), text);
  }
}

TEST(ClockTest, AcceptsTheUsualVariants) {
  EXPECT_EQ(parse_rfc3339("2025-02-03").value().time, 1'738'540'800 * kSecond);
  EXPECT_EQ(parse_rfc3339("2025-02-03T00:00:00").value().time, 1'738'540'800 * kSecond);
  EXPECT_EQ(parse_rfc3339("2025-02-03 00:00:00z").value().time, 1'738'540'800 * kSecond);
  EXPECT_EQ(parse_rfc3339("2025-02-03t01:00:00+01:00").value().time, 1'738'540'800 * kSecond);
  EXPECT_EQ(parse_rfc3339("1970-01-01T00:00:00.25Z").value().time, 250'000);
  EXPECT_EQ(parse_rfc3339("1970-01-01T00:00:00.1234567891Z").value().time, 123'456);
  EXPECT_EQ(parse_rfc3339("2016-12-31T23:59:60Z").value().time,
            parse_rfc3339("2017-01-01T00:00:00Z").value().time);
  EXPECT_EQ(parse_rfc3339("2017-01-01T00:59:60+01:00").value().time,
            parse_rfc3339("2017-01-01T00:00:00Z").value().time);
  EXPECT_EQ(parse_rfc3339("2025-02-03T00:00:00-00:00").value().offset_minutes, 0);
}

TEST(ClockTest, RejectsEverythingElse) {
  const std::string bad[] = {"",
                             "now",
                             "2025",
                             "2025-2-3",
                             "2025-02-30",
                             "2023-02-29",
                             "1900-02-29",
                             "2025-13-01",
                             "2025-00-01",
                             "2025-01-00",
                             "0000-01-01",
                             "10000-01-01",
                             "2025-02-03T",
                             "2025-02-03T09",
                             "2025-02-03T09:30",
                             "2025-02-03T24:00:00Z",
                             "2025-02-03T09:60:00Z",
                             "2025-02-03T09:30:61Z",
                             "2025-02-03T09:30:60Z",
                             "2025-02-03T09:30:00.Z",
                             "2025-02-03T09:30:00+1",
                             "2025-02-03T09:30:00+24:00",
                             "2025-02-03T09:30:00+01:60",
                             "2025-02-03T09:30:00Zx",
                             "2025-02-03Z",
                             " 2025-02-03",
                             "2025-02-03 ",
                             "0001-01-01T00:00:00+01:00",
                             "9999-12-31T23:59:59-01:00",
                             "2025-02-03T09:30:00\xff",
                             std::string(100'000, '1')};
  for (const std::string& text : bad) {
    const auto parsed = parse_rfc3339(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find("2025-02-03T09:30:00+01:00"), std::string::npos);
    EXPECT_LT(parsed.status().message().size(), 300U);
  }
}

TEST(ClockTest, AMessageIsCutBetweenCharacters) {
  for (std::size_t ahead = 60; ahead < 66; ++ahead) {
    const auto parsed = parse_rfc3339(std::string(ahead, '5') + "\u3002\u3002\u3002");
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(find_invalid_utf8(parsed.status().message()), std::string_view::npos) << ahead;
  }
}

TEST(ClockTest, NowIsNow) {
  EXPECT_GT(now_us(), parse_rfc3339("2025-01-01").value().time);
  Stopwatch watch;
  EXPECT_GE(watch.elapsed_ms(), 0.0);
}

}  // namespace
}  // namespace inferscale
