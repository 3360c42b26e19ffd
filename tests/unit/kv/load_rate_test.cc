#include "kv/load_rate.h"

#include <gtest/gtest.h>

namespace inferscale {
namespace {

TEST(LoadRate, RefusesNothingBeforeItHasMeasured) {
  LoadRate rate;
  EXPECT_FALSE(rate.slower_than(1000, 1e-9));
  rate.note(0, 1);
  rate.note(100, -1);
  EXPECT_FALSE(rate.slower_than(1000, 1e-9));
}

TEST(LoadRate, ComparesWithPrefill) {
  LoadRate rate;
  rate.note(1000, 0.001);  // a microsecond an element
  EXPECT_FALSE(rate.slower_than(1000, 1001));
  EXPECT_TRUE(rate.slower_than(1000, 999));
  EXPECT_FALSE(rate.slower_than(1000, 0));  // prefill unknown
  for (int i = 0; i < 100; ++i) {
    rate.note(1000, 0.01);
  }
  EXPECT_TRUE(rate.slower_than(1000, 5000));
}

TEST(LoadRate, MeasuresAgainWhatItRefuses) {
  LoadRate rate;
  rate.note(1, 100);
  int let_through = 0;
  for (int i = 0; i < 160; ++i) {
    let_through += rate.slower_than(1, 1) ? 0 : 1;
  }
  EXPECT_EQ(let_through, 10);
}

TEST(LoadRate, CountsElementsOfAllLayers) {
  EXPECT_EQ(kv_elements({30, 3, 64, 64}, 28), 28U * 30 * 3 * 128);
}

}  // namespace
}  // namespace inferscale
