#include "kernels/bf16.h"

#include <bit>
#include <random>

#include "unit/kernels/convert_run.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/targets.h"

namespace inferscale::kernels {
namespace {

class Bf16Test : public TargetTest {};
INFERSCALE_ON_EVERY_TARGET(Bf16Test);

// Every bf16, both sides of it, every midpoint and its sides: NaNs, infinities and subnormals are
// among them; then random bits.
std::vector<float> floats_to_round() {
  std::vector<float> floats;
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    for (const std::uint32_t low : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      floats.push_back(std::bit_cast<float>((half << 16) | low));
    }
  }
  std::mt19937 random(8);
  for (int i = 0; i < 100000; ++i) {
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  return floats;
}

TEST_P(Bf16Test, EveryOneBecomesItsFloat) {
  const auto floats = converted<float>(every_half(), KvCodec::kBf16, KvCodec::kF32);
  for (std::uint32_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]), i << 16);
  }
}

TEST_P(Bf16Test, FloatsRoundToNearestEven) {
  const std::vector<float> floats = floats_to_round();
  const auto halves = converted<std::uint16_t>(floats, KvCodec::kF32, KvCodec::kBf16);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(halves[i], bf16_of_float(floats[i]))
        << "float " << std::hex << std::bit_cast<std::uint32_t>(floats[i]);
  }
}

TEST_P(Bf16Test, FromAndToF16) {
  const auto bfloats = converted<std::uint16_t>(every_half(), KvCodec::kF16, KvCodec::kBf16);
  const auto halves = converted<std::uint16_t>(every_half(), KvCodec::kBf16, KvCodec::kF16);
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    ASSERT_EQ(bfloats[i], bf16_of_float(float_from_half(bits))) << "half " << std::hex << i;
    ASSERT_EQ(halves[i], half_from_float(std::bit_cast<float>(i << 16)))
        << "bf16 " << std::hex << i;
  }
}

TEST_P(Bf16Test, CopiedBitForBit) {
  EXPECT_EQ(converted<std::uint16_t>(every_half(), KvCodec::kBf16, KvCodec::kBf16), every_half());
}

// The functions that handle tails on every target.
TEST(Bf16ScalarTest, MatchesTheReference) {
  EXPECT_EQ(bf16_from_float(1.0F), 0x3F80);
  EXPECT_EQ(bf16_from_float(-2.5F), 0xC020);
  for (const float value : floats_to_round()) {
    ASSERT_EQ(bf16_from_float(value), bf16_of_float(value));
  }
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const float value = float_from_bf16(static_cast<std::uint16_t>(i));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value), i << 16);
  }
}

}  // namespace
}  // namespace inferscale::kernels
