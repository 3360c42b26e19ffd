#include "kernels/f16.h"

#include <bit>
#include <cstring>
#include <random>

#include "unit/kernels/convert_run.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/targets.h"

namespace inferscale::kernels {
namespace {

class F16Test : public TargetTest {};
INFERSCALE_ON_EVERY_TARGET(F16Test);

// Around every half and every midpoint of two, infinities, NaNs, float subnormals, random bits.
std::vector<float> floats_to_round() {
  std::vector<float> floats;
  for (std::uint32_t half = 0; half < 0x8000; ++half) {
    const std::uint32_t bits =
        std::bit_cast<std::uint32_t>(float_from_half(static_cast<std::uint16_t>(half)));
    const double middle = 0.5 * (half_value(static_cast<std::uint16_t>(half)) +
                                 half_value(static_cast<std::uint16_t>(half + 1)));
    const std::uint32_t middle_bits = std::bit_cast<std::uint32_t>(static_cast<float>(middle));
    for (const std::uint32_t center : {bits, middle_bits}) {
      for (const std::uint32_t sign : {0U, 0x80000000U}) {
        floats.push_back(std::bit_cast<float>(center | sign));
        floats.push_back(std::bit_cast<float>((center + 1) | sign));
        floats.push_back(std::bit_cast<float>((center == 0 ? 0 : center - 1) | sign));
      }
    }
  }
  for (const std::uint32_t bits :
       {0x477FEFFFU, 0x477FF000U, 0x477FF001U, 0x47800000U, 0x7F7FFFFFU, 0x7F800000U, 0x7F800001U,
        0x7FFFFFFFU, 0x7FC00000U, 1U, 0x007FFFFFU, 0x32FFFFFFU, 0x33000000U, 0x33000001U}) {
    floats.push_back(std::bit_cast<float>(bits));
    floats.push_back(std::bit_cast<float>(bits | 0x80000000U));
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  return floats;
}

TEST_P(F16Test, EveryHalfBecomesItsFloat) {
  const std::vector<std::uint16_t> halves = every_half();
  const std::vector<float> floats = converted<float>(halves, KvCodec::kF16, KvCodec::kF32);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]),
              std::bit_cast<std::uint32_t>(float_from_half(halves[i])))
        << "half " << std::hex << halves[i];
  }
}

TEST_P(F16Test, FloatsRoundToNearestEven) {
  const std::vector<float> floats = floats_to_round();
  const std::vector<std::uint16_t> halves =
      converted<std::uint16_t>(floats, KvCodec::kF32, KvCodec::kF16);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(halves[i], half_from_float(floats[i]))
        << "float " << std::hex << std::bit_cast<std::uint32_t>(floats[i]);
  }
}

TEST_P(F16Test, EqualTypesAreCopiedBitForBit) {
  EXPECT_EQ(converted<std::uint16_t>(every_half(), KvCodec::kF16, KvCodec::kF16), every_half());
  const std::vector<float> floats = floats_to_round();
  const std::vector<float> copy = converted<float>(floats, KvCodec::kF32, KvCodec::kF32);
  EXPECT_EQ(std::memcmp(copy.data(), floats.data(), floats.size() * sizeof(float)), 0);
}

// Lengths around every vector width, at every alignment.
TEST_P(F16Test, TailsAndOddAddresses) {
  std::vector<std::byte> from(600);
  fill_random(KvCodec::kF32, from.data(), 140, 3);
  for (std::size_t count = 0; count <= 67; ++count) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::vector<std::byte> source(from.begin(), from.end());
      std::memmove(source.data() + shift, from.data(), count * 4);
      std::vector<std::byte> target(shift + count * 2 + 1, std::byte{0xA5});
      RowMove move;
      move.source.base = source.data() + shift;
      move.target.base = target.data() + shift;
      move.source_codec = KvCodec::kF32;
      move.target_codec = KvCodec::kF16;
      move.n_tokens = 1;
      move.n_heads = 1;
      move.head_dim = count;
      convert_rows(move);
      ASSERT_TRUE(
          is_converted(count, {KvCodec::kF32, move.source.base}, {KvCodec::kF16, move.target.base}))
          << count << " elements shifted by " << shift;
      ASSERT_EQ(target.back(), std::byte{0xA5});
      for (std::size_t i = 0; i < shift; ++i) {
        ASSERT_EQ(target[i], std::byte{0xA5});
      }
    }
  }
}

// The functions that handle tails on every target.
TEST(F16ScalarTest, MatchesTheReference) {
  for (const std::uint16_t half : every_half()) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(float_from_f16(half)),
              std::bit_cast<std::uint32_t>(float_from_half(half)));
  }
  for (const float value : floats_to_round()) {
    ASSERT_EQ(f16_from_float(value), half_from_float(value));
  }
}

}  // namespace
}  // namespace inferscale::kernels
