#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "kernels/quantized.h"
#include "kernels/transcode.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/targets.h"
#include "unit/kernels/test_cache.h"

// Records in q4 against docs/format.md, once more in double and written for reading.
namespace inferscale::kernels {
namespace {

class Q4Test : public TargetTest {};
INFERSCALE_ON_EVERY_TARGET(Q4Test);

// Models' heads, blocks of one and two elements, and values of odd dimensions.
const KvShape kShapes[] = {{2, 3, 64, 64}, {1, 2, 96, 96}, {1, 2, 80, 80},    {1, 2, 128, 128},
                           {2, 2, 70, 33}, {1, 3, 22, 1},  {1, 1, 1024, 130}, {1, 2, 8, 4}};

using Doubles = std::vector<double>;

std::shared_ptr<const Record> transcoded(const Record& record, KvCodec codec) {
  auto made = transcode_record(record, codec);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? *made : nullptr;
}

std::size_t dim_of(const Record& record, KvPart part) {
  return part == KvPart::kK ? record.meta().shape.head_dim_k : record.meta().shape.head_dim_v;
}

// A head of a record that is not in q4.
Doubles head_of(const Record& record, std::uint32_t layer, KvPart part, std::size_t token,
                std::size_t head) {
  Doubles values(dim_of(record, part));
  const Head at = packed_head(record, layer, part, token, head);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = at.value(i);
  }
  return values;
}

struct Q4Head {
  std::vector<int> levels;  // 0..15
  double scale = 0;
  std::byte pad{0};  // the upper half of an odd head's last byte
};

Q4Head q4_head(const Record& record, std::uint32_t layer, KvPart part, std::size_t token,
               std::size_t head) {
  const std::size_t dim = dim_of(record, part);
  const std::size_t cell = token * record.meta().shape.n_kv_heads + head;
  const std::byte* bytes = record.layer_part(layer, part) + cell * ((dim + 1) / 2);
  Q4Head out;
  for (std::size_t i = 0; i < dim; ++i) {
    const int both = static_cast<int>(bytes[i / 2]);
    out.levels.push_back(i % 2 == 0 ? both % 16 : both / 16);
  }
  out.pad = dim % 2 == 1 ? bytes[dim / 2] >> 4 : std::byte{0};
  const KvPart scales = part == KvPart::kK ? KvPart::kKScales : KvPart::kVScales;
  float scale = 0;
  std::memcpy(&scale, record.layer_part(layer, scales) + cell * sizeof(scale), sizeof(scale));
  out.scale = scale;
  return out;
}

std::uint16_t mean_bits(const Record& record, std::uint32_t layer, std::size_t head,
                        std::size_t i) {
  std::uint16_t bits = 0;
  const std::size_t channel = head * record.meta().shape.head_dim_k + i;
  std::memcpy(&bits, record.layer_part(layer, KvPart::kKMeans) + channel * sizeof(bits),
              sizeof(bits));
  return bits;
}

// By definition: element j of a block is the sum of all elements i, negative where i and j have an
// odd number of bits in common.
Doubles hadamard(const Doubles& row) {
  std::size_t block = 1;
  while (row.size() % (2 * block) == 0) {
    block *= 2;
  }
  Doubles out(row.size());
  for (std::size_t at = 0; at < row.size(); ++at) {
    const std::size_t begin = at / block * block;
    for (std::size_t i = 0; i < block; ++i) {
      out[at] += std::popcount(i & (at - begin)) % 2 == 0 ? row[begin + i] : -row[begin + i];
    }
  }
  return out;
}

double block_of(std::size_t dim) { return static_cast<double>(dim & (~dim + 1)); }

double largest_of(const Doubles& row) {
  double largest = 0;
  for (const double value : row) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// `exact`: what the head holds, without the mean. Its levels are those of the format.
void expect_quantised(Doubles exact, const Q4Head& got) {
  const double block = block_of(exact.size());
  for (double& value : exact) {
    value /= block;
  }
  const Doubles wanted = hadamard(exact);
  const double largest = largest_of(wanted);
  EXPECT_EQ(got.pad, std::byte{0});
  EXPECT_TRUE(is_scale(KvCodec::kQ4, std::bit_cast<std::uint32_t>(static_cast<float>(got.scale))));
  // The fp32 sums' own error, and one step of 16 significant bits.
  const double slack = 12 * 0x1p-23 * largest_of(exact) * block;
  EXPECT_GE(8 * got.scale, largest - slack);
  EXPECT_LE(8 * got.scale, (largest + slack) * (1 + 0x1p-15));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (got.scale == 0) {
      EXPECT_EQ(got.levels[i], 0);
      continue;
    }
    const double middle = (got.levels[i] - 7.5) * got.scale;
    ASSERT_LE(std::fabs(middle - wanted[i]), got.scale * (0.5 + 0x1p-20) + slack) << i;
  }
}

void expect_record_quantised(const Record& from, const Record& got) {
  const KvShape& shape = from.meta().shape;
  const auto n = static_cast<double>(from.n_tokens());
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (std::size_t head = 0; head < shape.n_kv_heads; ++head) {
      Doubles means(shape.head_dim_k);
      for (std::size_t token = 0; token < from.n_tokens(); ++token) {
        const Doubles key = head_of(from, layer, KvPart::kK, token, head);
        for (std::size_t i = 0; i < means.size(); ++i) {
          means[i] += key[i];
        }
      }
      for (std::size_t i = 0; i < means.size(); ++i) {
        const std::uint16_t bits = half_from_float(static_cast<float>(means[i] / n));
        ASSERT_EQ(mean_bits(got, layer, head, i), bits);
        means[i] = half_value(bits);
      }
      for (std::size_t token = 0; token < from.n_tokens(); ++token) {
        SCOPED_TRACE("layer " + std::to_string(layer) + " token " + std::to_string(token));
        Doubles key = head_of(from, layer, KvPart::kK, token, head);
        for (std::size_t i = 0; i < means.size(); ++i) {
          key[i] = static_cast<float>(key[i] - means[i]);
        }
        expect_quantised(key, q4_head(got, layer, KvPart::kK, token, head));
        expect_quantised(head_of(from, layer, KvPart::kV, token, head),
                         q4_head(got, layer, KvPart::kV, token, head));
      }
    }
  }
}

// `wide` holds what the q4 record says, but for the fp32 sums' own error.
void expect_unpacked(const Record& packed, const Record& wide) {
  const KvShape& shape = packed.meta().shape;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (std::size_t cell = 0; cell < packed.n_tokens() * shape.n_kv_heads; ++cell) {
      const std::size_t token = cell / shape.n_kv_heads;
      const std::size_t head = cell % shape.n_kv_heads;
      for (const KvPart part : {KvPart::kK, KvPart::kV}) {
        const Q4Head given = q4_head(packed, layer, part, token, head);
        Doubles levels;
        for (const int level : given.levels) {
          levels.push_back((level - 7.5) * given.scale);
        }
        const Doubles wanted = hadamard(levels);
        const Doubles got = head_of(wide, layer, part, token, head);
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double mean =
              part == KvPart::kK ? half_value(mean_bits(packed, layer, head, i)) : 0;
          const double size = block_of(got.size()) * 7.5 * given.scale + std::fabs(mean);
          ASSERT_LE(std::fabs(got[i] - (wanted[i] + mean)), 12 * 0x1p-24 * size)
              << describe(shape) << " layer " << layer << " cell " << cell << " element " << i;
        }
      }
    }
  }
}

TEST_P(Q4Test, RecordsAreQuantisedAndReadAsTheFormatSays) {
  for (const KvShape& shape : kShapes) {
    for (const std::uint32_t n_tokens : {1U, 5U, 70U}) {
      for (const KvCodec from : {KvCodec::kF16, KvCodec::kF32, KvCodec::kQ8}) {
        SCOPED_TRACE(describe(shape) + ", " + std::to_string(n_tokens) + " tokens in " +
                     codec_name(from));
        const auto record = random_record(meta_of(shape, from), n_tokens, 3);
        const auto packed = transcoded(*record, KvCodec::kQ4);
        ASSERT_NE(packed, nullptr);
        EXPECT_TRUE(packed->verify().ok());
        EXPECT_TRUE(Record::parse(packed->bytes()).ok());
        expect_record_quantised(*record, *packed);
        const auto wide = transcoded(*packed, KvCodec::kF32);
        ASSERT_NE(wide, nullptr);
        expect_unpacked(*packed, *wide);
        if (HasFailure()) {
          return;
        }
      }
    }
  }
}

// What the means and the transform are for: a channel that is large in every token, and one element
// that is large in a single head.
TEST_P(Q4Test, OutliersDoNotSpoilTheirHeads) {
  const KvShape shape{1, 1, 64, 64};
  const auto random = random_record(meta_of(shape, KvCodec::kF32), 20, 8);
  RecordBuilder builder =
      std::move(RecordBuilder::create(random->meta(), random->token_ids())).value();
  std::vector<float> k(20 * 64);
  std::vector<float> v(20 * 64);
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = std::sin(static_cast<float>(i * i)) + (i % 64 == 7 ? 40.0F : 0.0F);
    v[i] = std::sin(static_cast<float>(3 * i * i)) + (i % 64 == i / 64 ? 8.0F : 0.0F);
  }
  std::memcpy(builder.layer_k(0), k.data(), k.size() * sizeof(float));
  std::memcpy(builder.layer_v(0), v.data(), v.size() * sizeof(float));
  const auto record = std::move(builder).seal();
  const auto back = transcoded(*transcoded(*record, KvCodec::kQ4), KvCodec::kF32);
  double key_error = 0;
  double value_error = 0;
  for (std::size_t token = 0; token < 20; ++token) {
    const Doubles key = head_of(*back, 0, KvPart::kK, token, 0);
    const Doubles value = head_of(*back, 0, KvPart::kV, token, 0);
    for (std::size_t i = 0; i < 64; ++i) {
      key_error += std::pow(key[i] - k[token * 64 + i], 2) / (20 * 64);
      value_error += std::pow(value[i] - v[token * 64 + i], 2) / (20 * 64);
    }
  }
  // A step without either is 40 / 7.5 and 9 / 7.5, whose rounding alone has 2.4 and 0.12.
  EXPECT_LT(key_error, 0.02);
  EXPECT_LT(value_error, 0.04);
}

TEST_P(Q4Test, EveryTargetGivesTheSameBytes) {
  for (const KvShape& shape : kShapes) {
    const auto record = random_record(meta_of(shape, KvCodec::kF16), 9, 4);
    const auto packed = transcoded(*record, KvCodec::kQ4);
    const auto wide = transcoded(*packed, KvCodec::kF32);
    hwy::SetSupportedTargetsForTest(0);
    EXPECT_TRUE(std::ranges::equal(transcoded(*record, KvCodec::kQ4)->bytes(), packed->bytes()))
        << describe(shape);
    EXPECT_TRUE(std::ranges::equal(transcoded(*packed, KvCodec::kF32)->bytes(), wide->bytes()))
        << describe(shape);
    hwy::SetSupportedTargetsForTest(GetParam());
  }
}

TEST_P(Q4Test, ComposedAsIfFromFloats) {
  for (const KvShape& shape : kShapes) {
    for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalves}) {
      const std::uint32_t rotary = shape.head_dim_k == 80 ? 20 : shape.head_dim_k;
      const auto table = table_of(specs_of_every_scaling(pairing, rotary)[3], 256);
      const auto packed =
          transcoded(*random_record(meta_of(shape, KvCodec::kF32), 7, 5), KvCodec::kQ4);
      const auto wide = transcoded(*packed, KvCodec::kF32);
      for (const KvCodec dtype : {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16}) {
        for (const Arrangement arrangement : kArrangements) {
          TestCache from_packed(shape, dtype, 12, arrangement);
          TestCache from_wide(shape, dtype, 12, arrangement);
          ComposeItem item{packed.get(), 100, 3, {}};
          item.first_token = 2;
          item.n_tokens = 4;
          ASSERT_TRUE(kv_compose(std::span(&item, 1), *table, from_packed.layout()).ok());
          item.record = wide.get();
          ASSERT_TRUE(kv_compose(std::span(&item, 1), *table, from_wide.layout()).ok());
          for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
            for (std::uint32_t row = 3; row < 7; ++row) {
              for (std::uint32_t head = 0; head < shape.n_kv_heads; ++head) {
                ASSERT_TRUE(is_converted(shape.head_dim_k, from_wide.k(layer, row, head),
                                         from_packed.k(layer, row, head)));
                ASSERT_TRUE(is_converted(shape.head_dim_v, from_wide.v(layer, row, head),
                                         from_packed.v(layer, row, head)));
              }
            }
          }
          const std::uint32_t written[] = {3, 4, 5, 6};
          EXPECT_TRUE(from_packed.intact_except(written));
        }
      }
    }
  }
}

TEST(Q4, ToItselfTheSameBytes) {
  const auto record = random_record(meta_of(kShapes[4], KvCodec::kF16), 6, 7);
  const auto packed = transcoded(*record, KvCodec::kQ4);
  const auto again = transcoded(*packed, KvCodec::kQ4);
  EXPECT_TRUE(std::ranges::equal(packed->bytes(), again->bytes()));
}

// Keys that are all one key, and values of zero: nothing is left to be quantised.
TEST(Q4, HeadsOfZerosHaveNoScale) {
  const KvShape shape{1, 2, 64, 33};
  auto builder = RecordBuilder::create(meta_of(shape, KvCodec::kF16), std::vector<TokenId>(3));
  ASSERT_TRUE(builder.ok());
  for (std::size_t i = 0; i < 3 * shape.k_elements(); ++i) {
    const auto half = static_cast<std::uint16_t>(0x3C00 + i % shape.k_elements());
    std::memcpy(builder->layer_k(0) + 2 * i, &half, sizeof(half));
  }
  const auto record = std::move(*builder).seal();
  const auto packed = transcoded(*record, KvCodec::kQ4);
  const auto all_zero = [&](KvPart part) {
    const std::size_t size = part_bytes(shape, KvCodec::kQ4, part, 3);
    const std::byte* at = packed->layer_part(0, part);
    return std::all_of(at, at + size, [](std::byte b) { return b == std::byte{0}; });
  };
  for (const KvPart part : kTokenParts) {
    EXPECT_TRUE(all_zero(part)) << static_cast<int>(part);
  }
  EXPECT_TRUE(std::ranges::equal(transcoded(*packed, KvCodec::kF16)->bytes(), record->bytes()));
}

Status with_element(KvPart part, float bad) {
  const KvShape shape{2, 3, 64, 64};
  auto builder = RecordBuilder::create(meta_of(shape, KvCodec::kF32), std::vector<TokenId>(4));
  EXPECT_TRUE(builder.ok());
  // Of layer 1, token 2, head 1.
  std::memcpy(builder->layer_part(1, part) + ((2 * 3 + 1) * 64 + 5) * sizeof(bad), &bad,
              sizeof(bad));
  return transcode_record(*std::move(*builder).seal(), KvCodec::kQ4).status();
}

TEST(Q4, WhatItCannotHoldIsRefusedAndNamed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::nanf(""), 0x1p117F, 3e38F}) {
    const Status key = with_element(KvPart::kK, bad);
    EXPECT_EQ(key.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(key.message().find("keys of layer 1, head 1"), std::string::npos) << key.message();
    const Status value = with_element(KvPart::kV, bad);
    EXPECT_EQ(value.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(value.message().find("value of layer 1, token 2, head 1"), std::string::npos)
        << value.message();
  }
  EXPECT_TRUE(with_element(KvPart::kK, 200'000).ok()) << "its mean is 50,000";
  EXPECT_FALSE(with_element(KvPart::kK, 300'000).ok()) << "no f16 is 75,000";
  EXPECT_TRUE(with_element(KvPart::kV, 0x1p115F).ok());
}

TEST(Q4, IsNotCapturedButTranscoded) {
  const KvShape shape{1, 2, 64, 64};
  TestCache cache(shape, KvCodec::kBf16, 5);
  const auto table = table_of(specs_of_every_scaling(RopePairing::kHalves, 64)[0], 64);
  const std::vector<TokenId> tokens(5, 1);
  auto refused = RecordBuilder::create(meta_of(shape, KvCodec::kQ4), tokens);
  ASSERT_TRUE(refused.ok());
  const Status status = kv_capture(cache.const_layout(), {}, *table, *refused);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("codec q4"), std::string::npos) << status.message();

  EXPECT_EQ(capture_codec(KvCodec::kQ4, KvCodec::kBf16), KvCodec::kBf16);
  EXPECT_EQ(capture_codec(KvCodec::kQ8, KvCodec::kBf16), KvCodec::kQ8);
  const auto captured = [&] {
    auto builder = RecordBuilder::create(meta_of(shape, KvCodec::kBf16), tokens);
    EXPECT_TRUE(kv_capture(cache.const_layout(), {}, *table, *builder).ok());
    return std::move(*builder);
  };
  const auto as_is = seal_as(captured(), KvCodec::kBf16);
  const auto packed = seal_as(captured(), KvCodec::kQ4);
  ASSERT_TRUE(as_is.ok() && packed.ok());
  EXPECT_EQ((*as_is)->meta().codec, KvCodec::kBf16);
  EXPECT_TRUE(std::ranges::equal((*packed)->bytes(), transcoded(**as_is, KvCodec::kQ4)->bytes()));
}

TEST(Q4, ScalesAreCheckedBitByBit) {
  for (const float scale : {0.0F, 0x1p-110F, 1.0F, 0x1p107F}) {
    EXPECT_TRUE(is_scale(KvCodec::kQ4, std::bit_cast<std::uint32_t>(scale))) << scale;
  }
  EXPECT_TRUE(std::isfinite(0x1p108F * 8 * 1024)) << "no sum of a head's levels overflows";
  for (const float scale : {-0.0F, -1.0F, 0x1p-111F, 0x1p108F, 0x1.000002p0F}) {
    EXPECT_FALSE(is_scale(KvCodec::kQ4, std::bit_cast<std::uint32_t>(scale))) << scale;
  }
}

}  // namespace
}  // namespace inferscale::kernels
