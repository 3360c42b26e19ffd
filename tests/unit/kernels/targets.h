#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "hwy/highway.h"

namespace inferscale::kernels {

/// Every instruction set that was compiled and that this processor has, the fallback among them.
inline std::vector<std::int64_t> dispatch_targets() {
  std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  const std::int64_t fallback = HWY_STATIC_TARGET;
  if (std::find(targets.begin(), targets.end(), fallback) == targets.end()) {
    targets.push_back(fallback);
  }
  return targets;
}

/// Runs each test with one instruction set only.
class TargetTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

inline std::string target_name(const ::testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace inferscale::kernels

#define INFERSCALE_ON_EVERY_TARGET(suite)                                                  \
  INSTANTIATE_TEST_SUITE_P(Targets, suite,                                                 \
                           ::testing::ValuesIn(::inferscale::kernels::dispatch_targets()), \
                           ::inferscale::kernels::target_name)
