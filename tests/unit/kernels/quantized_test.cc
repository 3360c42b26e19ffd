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

constexpr KvCodec kScaled[] = {KvCodec::kQ8};
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
        EXPECT_LE(std::fabs(value.value(i) - rows.k[i]), value.scale * (0.5 + std::ldexp(1.0, -17)))
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
  for (const float scale : {0.0F, 0x1p-110F, 1.0F, 0.0078125F, 0x1.fffep120F}) {
    EXPECT_TRUE(is_scale(std::bit_cast<std::uint32_t>(scale))) << scale;
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float scale : {-0.0F, -1.0F, 0x1p-111F, 0x1p121F, kInfinity, -kInfinity,
                            std::numeric_limits<float>::quiet_NaN(), 0x1.000002p0F}) {
    EXPECT_FALSE(is_scale(std::bit_cast<std::uint32_t>(scale))) << scale;
  }
}

}  // namespace
}  // namespace inferscale::kernels
