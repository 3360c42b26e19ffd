#include "kernels/quantized.h"

#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/targets.h"
#include "unit/kernels/test_cache.h"

// What only scaled codecs do; the suites of compose and capture run on them as on the others.
namespace inferscale::kernels {
namespace {

class QuantizedTest : public TargetTest {};
INFERSCALE_ON_EVERY_TARGET(QuantizedTest);

constexpr KvCodec kScaled[] = {KvCodec::kQ8, KvCodec::kFp8E4m3};
constexpr std::uint32_t kDim = 70;  // ends in the middle of every vector width

RopeSpec some_rope() { return specs_of_every_scaling(RopePairing::kHalves, 8)[0]; }

// One layer of f32 rows with one head, all at position 0: keys are what they are.
struct Rows {
  explicit Rows(std::vector<std::vector<float>> of_keys)
      : keys(std::move(of_keys)), k(keys.size() * kDim) {
    for (std::size_t row = 0; row < keys.size(); ++row) {
      std::copy(keys[row].begin(), keys[row].end(), k.begin() + static_cast<long>(row * kDim));
    }
  }
  [[nodiscard]] ConstCacheLayout cache() const {
    const auto* data = reinterpret_cast<const std::byte*>(k.data());
    ConstCacheLayout layout{KvCodec::kF32, {1, 1, kDim, kDim}, {data}, {data}};
    layout.k_strides.row = layout.k_strides.head = kDim * sizeof(float);
    layout.v_strides = layout.k_strides;
    layout.n_rows = keys.size();
    return layout;
  }
  // The record of these rows, each of them captured as position 0 where it stands.
  [[nodiscard]] Status capture(KvCodec codec, std::shared_ptr<const Record>* record) const {
    auto table = table_of(some_rope(), 16);
    auto builder = RecordBuilder::create(meta_of({1, 1, kDim, kDim}, codec),
                                         std::vector<TokenId>(keys.size(), 1));
    INFERSCALE_RETURN_IF_ERROR(builder.status());
    const Status status = kv_capture(cache(), {}, *table, *builder);
    if (status.ok()) {
      *record = std::move(*builder).seal();
    }
    return status;
  }
  std::vector<std::vector<float>> keys;
  std::vector<float> k;
};

std::vector<float> ramp(float largest) {
  std::vector<float> row(kDim);
  for (std::uint32_t i = 0; i < kDim; ++i) {
    row[i] = largest * (2.0F * static_cast<float>(i) / (kDim - 1) - 1.0F);
  }
  return row;
}

TEST_P(QuantizedTest, HeadsOfEverySizeAreWithinHalfAStep) {
  for (const KvCodec codec : kScaled) {
    for (const float largest : {0.0F, 1e-30F, 3e-5F, 1.0F, 127.0F, 65504.0F, 1.6e38F}) {
      const Rows rows({ramp(largest)});
      std::shared_ptr<const Record> record;
      ASSERT_TRUE(rows.capture(codec, &record).ok()) << largest;
      const Head value = packed_head(*record, 0, KvPart::kV, 0, 0);
      const Head given{KvCodec::kF32, reinterpret_cast<const std::byte*>(rows.k.data())};
      EXPECT_TRUE(is_converted(kDim, given, value)) << largest;
      for (std::uint32_t i = 0; i < kDim; ++i) {
        EXPECT_LE(std::fabs(value.value(i) - rows.k[i]), half_step(codec, rows.k[i], value.scale))
            << largest << " element " << i;
      }
      EXPECT_TRUE(record->verify().ok());
      EXPECT_TRUE(Record::parse(record->bytes()).ok());
    }
  }
}

TEST_P(QuantizedTest, HeadsOfZerosHaveNoScale) {
  for (const KvCodec codec : kScaled) {
    for (const float tiny : {0.0F, -0.0F, 1e-45F, 0x1p-101F}) {
      std::shared_ptr<const Record> record;
      ASSERT_TRUE(Rows({std::vector<float>(kDim, tiny)}).capture(codec, &record).ok());
      const Head value = packed_head(*record, 0, KvPart::kV, 0, 0);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value.scale), 0U);
      for (std::uint32_t i = 0; i < kDim; ++i) {
        EXPECT_EQ(*value.at(i), std::byte{0});
      }
    }
  }
}

TEST_P(QuantizedTest, WhatWasQuantisedIsQuantisedToTheSameBytes) {
  const KvShape shape{2, 3, kDim, 33};
  for (const KvCodec codec : kScaled) {
    TestCache cache(shape, KvCodec::kF32, 40);
    const auto table = table_of(some_rope(), 64);
    const std::vector<TokenId> tokens(40, 1);
    auto first = RecordBuilder::create(meta_of(shape, codec), tokens);
    ASSERT_TRUE(first.ok());
    ASSERT_TRUE(kv_capture(cache.const_layout(), {}, *table, *first).ok());
    const auto record = std::move(*first).seal();
    TestCache back(shape, KvCodec::kF32, 40);
    const ComposeItem items[] = {{record.get(), 0, 0, {}}};
    ASSERT_TRUE(kv_compose(items, *table, back.layout()).ok());
    auto second = RecordBuilder::create(meta_of(shape, codec), tokens);
    ASSERT_TRUE(second.ok());
    ASSERT_TRUE(kv_capture(back.const_layout(), {}, *table, *second).ok());
    const auto again = std::move(*second).seal();
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
      for (const KvPart part : {KvPart::kV, KvPart::kVScales}) {  // keys were turned in between
        const std::size_t bytes = 40 * part_token_bytes(shape, codec, part);
        EXPECT_EQ(
            std::memcmp(record->layer_part(layer, part), again->layer_part(layer, part), bytes), 0);
      }
    }
  }
}

TEST_P(QuantizedTest, WhatCannotBeHeldIsRefusedAndNamed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const KvCodec codec : kScaled) {
    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan, 0x1p127F, -3e38F}) {
      for (const std::uint32_t at : {0U, 37U, kDim - 1}) {
        Rows rows({ramp(1), ramp(2), ramp(3)});
        rows.k[2 * kDim + at] = bad;
        std::shared_ptr<const Record> record;
        const Status status = rows.capture(codec, &record);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad << " at " << at;
        EXPECT_NE(status.message().find("layer 0, token 2, head 0"), std::string::npos)
            << status.message();
        EXPECT_EQ(record, nullptr);
      }
    }
  }
}

TEST_P(QuantizedTest, EveryTargetGivesTheSameBytes) {
  const KvShape shape{1, 2, kDim, 130};
  const TestCache cache(shape, KvCodec::kF16, 30);
  for (const KvCodec codec : kScaled) {
    const auto captured = [&] {
      auto builder = RecordBuilder::create(meta_of(shape, codec), std::vector<TokenId>(30, 1));
      EXPECT_TRUE(kv_capture(cache.const_layout(), {}, *table_of(some_rope(), 64), *builder).ok());
      return std::move(*builder).seal();
    };
    const auto here = captured();
    hwy::SetSupportedTargetsForTest(0);
    const auto best = captured();
    for (const KvPart part : {KvPart::kV, KvPart::kVScales}) {
      EXPECT_EQ(std::memcmp(here->layer_part(0, part), best->layer_part(0, part),
                            30 * part_token_bytes(shape, codec, part)),
                0);
    }
  }
}

TEST(QuantizedScales, AreCheckedBitByBit) {
  for (const KvCodec codec : kScaled) {
    const float above = codec == KvCodec::kQ8 ? 0x1p121F : 0x1p119F;  // no element overflows
    for (const float scale : {0.0F, 0x1p-110F, 1.0F, 0.0078125F, 0.99999F * above}) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(scale) & ~0xFFU;
      EXPECT_TRUE(is_scale(codec, bits)) << scale;
      EXPECT_TRUE(std::isfinite(std::bit_cast<float>(bits) * largest_element(codec)));
    }
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float scale : {-0.0F, -1.0F, 0x1p-111F, above, kInfinity, -kInfinity,
                              std::numeric_limits<float>::quiet_NaN(), 0x1.000002p0F}) {
      EXPECT_FALSE(is_scale(codec, std::bit_cast<std::uint32_t>(scale))) << scale;
    }
  }
}

TEST(E4m3, EveryElementIsItsValueAndNearestToItself) {
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    const auto element = static_cast<std::uint8_t>(bits);
    if ((bits & 0x7FU) == 0x7FU) {
      continue;  // NaN
    }
    const std::byte byte{element};
    EXPECT_EQ(float_from_e4m3(element), read_element(KvCodec::kFp8E4m3, &byte));
    EXPECT_EQ(e4m3_from_float(float_from_e4m3(element)), element);
  }
  EXPECT_EQ(float_from_e4m3(0x01), 0x1p-9F);
  EXPECT_EQ(float_from_e4m3(0x08), 0x1p-6F);
  EXPECT_EQ(float_from_e4m3(0x38), 1.0F);
  EXPECT_EQ(float_from_e4m3(0xFE), -448.0F);
}

TEST(E4m3, RoundsToNearestEvenAndSaturates) {
  for (std::uint32_t low = 0; low < 0x7E; ++low) {
    const float below = float_from_e4m3(static_cast<std::uint8_t>(low));
    const float above = float_from_e4m3(static_cast<std::uint8_t>(low + 1));
    const float middle = (below + above) / 2;
    const std::uint32_t even = low % 2 == 0 ? low : low + 1;
    EXPECT_EQ(e4m3_from_float(middle), even);
    EXPECT_EQ(e4m3_from_float(-middle), even | 0x80U);
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 0.0F)), low);
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 1000.0F)), low + 1);
  }
  EXPECT_EQ(e4m3_from_float(448.1F), 0x7E);
  EXPECT_EQ(e4m3_from_float(-3e38F), 0xFE);
  EXPECT_EQ(e4m3_from_float(std::numeric_limits<float>::infinity()), 0x7E);
}

}  // namespace
}  // namespace inferscale::kernels
