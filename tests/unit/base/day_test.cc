#include "base/day.h"

#include <gtest/gtest.h>

namespace inferscale {
namespace {

TEST(DayTest, IsThatOfTheOffset) {
  EXPECT_EQ(format_day(0), "1 January 1970");
  EXPECT_EQ(format_day(parse_rfc3339("2023-05-08T23:30:00Z")->time), "8 May 2023");
  EXPECT_EQ(format_day(parse_rfc3339("2023-05-08T23:30:00Z")->time, 60), "9 May 2023");
  EXPECT_EQ(format_day(parse_rfc3339("1969-12-31T00:30:00Z")->time, -60), "30 December 1969");
}

}  // namespace
}  // namespace inferscale
