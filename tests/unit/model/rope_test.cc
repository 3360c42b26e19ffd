#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>

#include "inferscale/model_spec.h"

namespace inferscale {
namespace {

RopeSpec plain_spec(std::uint32_t rotary_dim = 64) {
  RopeSpec spec;
  spec.rotary_dim = rotary_dim;
  return spec;
}

RopeSpec linear_spec() {
  RopeSpec spec = plain_spec();
  spec.scaling = RopeScaling::kLinear;
  spec.scaling_factor = 4.0;
  return spec;
}

RopeSpec llama3_spec() {
  RopeSpec spec = plain_spec(128);
  spec.scaling = RopeScaling::kLlama3;
  spec.freq_base = 500000.0;
  for (int i = 0; i < 64; ++i) {
    spec.freq_factors.push_back(1.0F + 0.1F * static_cast<float>(i));
  }
  return spec;
}

RopeSpec yarn_spec() {
  RopeSpec spec = plain_spec(128);
  spec.scaling = RopeScaling::kYarn;
  spec.pairing = RopePairing::kHalves;
  spec.freq_base = 1000000.0;
  spec.scaling_factor = 4.0;
  spec.original_context = 32768;
  return spec;
}

using Real = long double;

/// The definition, pair by pair, in the widest type there is.
Real expected_frequency(const RopeSpec& spec, std::uint32_t pair) {
  const Real dims = spec.rotary_dim;
  const Real own = std::pow(static_cast<Real>(spec.freq_base), -2 * static_cast<Real>(pair) / dims);
  switch (spec.scaling) {
    case RopeScaling::kNone:
      return own;
    case RopeScaling::kLinear:
      return own / static_cast<Real>(spec.scaling_factor);
    case RopeScaling::kLlama3:
      return own / static_cast<Real>(spec.freq_factors[pair]);
    case RopeScaling::kYarn:
      break;
  }
  const auto corrected = [&](Real turns) {
    const Real pi = std::acos(Real{-1});
    return dims * std::log(static_cast<Real>(spec.original_context) / (turns * 2 * pi)) /
           (2 * std::log(static_cast<Real>(spec.freq_base)));
  };
  const Real low = std::max(Real{0}, std::floor(corrected(spec.yarn_beta_fast)));
  const Real high = std::min(dims - 1, std::ceil(corrected(spec.yarn_beta_slow)));
  const Real ramp = (pair - low) / std::max(Real{0.001L}, high - low);
  const Real mix = (1 - std::min(Real{1}, std::max(Real{0}, ramp))) * spec.yarn_ext_factor;
  return own / spec.scaling_factor * (1 - mix) + own * mix;
}

class RopeTableTest : public ::testing::TestWithParam<RopeSpec> {};

TEST_P(RopeTableTest, EqualsTheDefinition) {
  const RopeSpec& spec = GetParam();
  constexpr std::uint32_t kPositions = 40'000;
  const auto table = RopeTable::build(spec, kPositions);
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  const Real scale = spec.mscale();
  for (std::uint32_t position : {0U, 1U, 2U, 100U, 8191U, 32767U, kPositions - 1}) {
    const float* cos_row = (*table)->cos_row(position);
    const float* sin_row = (*table)->sin_row(position);
    for (std::uint32_t pair = 0; pair < (*table)->pairs(); ++pair) {
      const Real angle = position * expected_frequency(spec, pair);
      ASSERT_NEAR(cos_row[pair], static_cast<double>(scale * std::cos(angle)), 1.3e-7)
          << position << " " << pair;
      ASSERT_NEAR(sin_row[pair], static_cast<double>(scale * std::sin(angle)), 1.3e-7)
          << position << " " << pair;
    }
  }
}

TEST_P(RopeTableTest, InverseNormUndoesTheScale) {
  const auto table = RopeTable::build(GetParam(), 100).value();
  const float c = table->cos_row(77)[3];
  const float s = table->sin_row(77)[3];
  EXPECT_NEAR((c * c + s * s) * table->inverse_norm(), 1.0F, 1e-6F);
  EXPECT_EQ(table->spec(), GetParam());
  EXPECT_EQ(table->max_positions(), 100U);
}

INSTANTIATE_TEST_SUITE_P(Scalings, RopeTableTest,
                         ::testing::Values(plain_spec(), plain_spec(2), linear_spec(),
                                           llama3_spec(), yarn_spec()));

TEST(RopeSpecTest, OnlyYarnScalesMagnitudes) {
  EXPECT_EQ(plain_spec().mscale(), 1.0);
  EXPECT_EQ(linear_spec().mscale(), 1.0);
  EXPECT_EQ(llama3_spec().mscale(), 1.0);
  RopeSpec spec = yarn_spec();
  EXPECT_DOUBLE_EQ(spec.mscale(), 1.0 + 0.1 * std::log(4.0));
  spec.yarn_attn_factor = 0.5;
  EXPECT_DOUBLE_EQ(spec.mscale(), 0.5 * (1.0 + 0.1 * std::log(4.0)));
  spec.yarn_ext_factor = 0.0;
  EXPECT_DOUBLE_EQ(spec.mscale(), 0.5);
}

TEST(RopeSpecTest, ValidatesEveryField) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto code_of = [](RopeSpec spec, auto change) {
    change(spec);
    const Status status = spec.validate();
    EXPECT_FALSE(RopeTable::build(spec, 10).ok());
    EXPECT_FALSE(status.message().empty());
    return status.code();
  };
  const auto bad = StatusCode::kInvalidArgument;
  EXPECT_EQ(code_of(plain_spec(), [](auto& s) { s.rotary_dim = 0; }), bad);
  EXPECT_EQ(code_of(plain_spec(), [](auto& s) { s.rotary_dim = 63; }), bad);
  EXPECT_EQ(code_of(plain_spec(), [](auto& s) { s.rotary_dim = 2048; }), bad);
  EXPECT_EQ(code_of(plain_spec(), [](auto& s) { s.freq_base = 1.0; }), bad);
  EXPECT_EQ(code_of(plain_spec(), [&](auto& s) { s.freq_base = nan; }), bad);
  EXPECT_EQ(code_of(plain_spec(), [](auto& s) { s.scaling_factor = 2.0; }), bad);
  EXPECT_EQ(code_of(plain_spec(), [](auto& s) { s.freq_factors = {1.0F}; }), bad);
  EXPECT_EQ(code_of(plain_spec(), [](auto& s) { s.pairing = static_cast<RopePairing>(7); }), bad);
  EXPECT_EQ(code_of(plain_spec(), [](auto& s) { s.scaling = static_cast<RopeScaling>(9); }), bad);
  EXPECT_EQ(code_of(linear_spec(), [](auto& s) { s.scaling_factor = 0.0; }), bad);
  EXPECT_EQ(code_of(linear_spec(), [](auto& s) { s.scaling_factor = -1.0; }), bad);
  EXPECT_EQ(code_of(llama3_spec(), [](auto& s) { s.freq_factors.pop_back(); }), bad);
  EXPECT_EQ(code_of(llama3_spec(), [](auto& s) { s.freq_factors[3] = 0.0F; }), bad);
  EXPECT_EQ(code_of(llama3_spec(), [](auto& s) { s.freq_factors[3] = INFINITY; }), bad);
  EXPECT_EQ(code_of(yarn_spec(), [](auto& s) { s.original_context = 0; }), bad);
  EXPECT_EQ(code_of(yarn_spec(), [](auto& s) { s.yarn_ext_factor = -1.0; }), bad);
  EXPECT_EQ(code_of(yarn_spec(), [](auto& s) { s.yarn_attn_factor = 0.0; }), bad);
  EXPECT_EQ(code_of(yarn_spec(), [](auto& s) { s.yarn_beta_fast = 0.0; }), bad);
  EXPECT_EQ(code_of(yarn_spec(), [&](auto& s) { s.yarn_beta_slow = nan; }), bad);
  for (const RopeSpec& spec : {plain_spec(), linear_spec(), llama3_spec(), yarn_spec()}) {
    EXPECT_TRUE(spec.validate().ok());
  }
}

TEST(RopeSpecTest, CanonicalBytesTellSpecsApart) {
  std::set<std::string> seen;
  std::vector<RopeSpec> specs = {plain_spec(), linear_spec(), llama3_spec(), yarn_spec()};
  const auto vary = [&](RopeSpec spec, auto change) {
    change(spec);
    specs.push_back(spec);
  };
  vary(plain_spec(), [](auto& s) { s.pairing = RopePairing::kHalves; });
  vary(plain_spec(), [](auto& s) { s.freq_base = std::nextafter(10000.0, 0.0); });
  vary(plain_spec(), [](auto& s) { s.rotary_dim = 32; });
  vary(linear_spec(), [](auto& s) { s.scaling_factor = 8.0; });
  vary(llama3_spec(), [](auto& s) { s.freq_factors[63] += 1.0F; });
  vary(yarn_spec(), [](auto& s) { s.yarn_ext_factor = 0.5; });
  vary(yarn_spec(), [](auto& s) { s.yarn_attn_factor = 0.5; });
  vary(yarn_spec(), [](auto& s) { s.yarn_beta_fast = 16.0; });
  vary(yarn_spec(), [](auto& s) { s.yarn_beta_slow = 2.0; });
  vary(yarn_spec(), [](auto& s) { s.original_context = 4096; });
  for (const RopeSpec& spec : specs) {
    EXPECT_TRUE(seen.insert(spec.canonical_bytes()).second);
  }
  EXPECT_EQ(plain_spec().canonical_bytes(), plain_spec().canonical_bytes());
}

TEST(RopeTableBoundsTest, RefusesPositionsOutOfRange) {
  EXPECT_EQ(RopeTable::build(plain_spec(), 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeTable::build(plain_spec(), (1U << 24) + 1).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(RopeTable::build(plain_spec(), 1).ok());
}

TEST(KvShapeTest, Validates) {
  const KvShape good{30, 3, 64, 64};
  EXPECT_TRUE(good.validate().ok());
  EXPECT_EQ(good.k_elements(), 192U);
  EXPECT_TRUE((KvShape{1024, 1024, 1024, 1024}).validate().ok());
  for (const KvShape& bad :
       {KvShape{0, 3, 64, 64}, KvShape{1025, 3, 64, 64}, KvShape{30, 0, 64, 64},
        KvShape{30, 1025, 64, 64}, KvShape{30, 3, 0, 64}, KvShape{30, 3, 63, 64},
        KvShape{30, 3, 1026, 64}, KvShape{30, 3, 64, 0}, KvShape{30, 3, 64, 1025}}) {
    EXPECT_EQ(bad.validate().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace inferscale
