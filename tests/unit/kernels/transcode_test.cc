#include "kernels/transcode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "unit/kernels/reference.h"

namespace inferscale::kernels {
namespace {

constexpr KvCodec kCodecs[] = {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16, KvCodec::kQ8,
                               KvCodec::kFp8E4m3};
const KvShape kShape{2, 3, 22, 70};

std::shared_ptr<const Record> transcoded(const Record& record, KvCodec codec) {
  auto made = transcode_record(record, codec);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? *made : nullptr;
}

bool same_bytes(const Record& a, const Record& b) {
  return std::ranges::equal(a.bytes(), b.bytes());
}

TEST(Transcode, EveryHeadIsConverted) {
  for (const KvCodec from : kCodecs) {
    const auto record = random_record(meta_of(kShape, from), 5, 3);
    for (const KvCodec to : kCodecs) {
      SCOPED_TRACE(std::string(codec_name(from)) + " to " + codec_name(to));
      const auto made = transcoded(*record, to);
      ASSERT_NE(made, nullptr);
      RecordMeta meta = record->meta();
      meta.codec = to;
      EXPECT_EQ(made->meta(), meta);
      EXPECT_TRUE(std::ranges::equal(made->token_ids(), record->token_ids()));
      EXPECT_TRUE(made->verify().ok());
      EXPECT_TRUE(Record::parse(made->bytes()).ok());
      for (std::uint32_t layer = 0; layer < kShape.n_layers; ++layer) {
        for (std::size_t token = 0; token < 5; ++token) {
          for (std::size_t head = 0; head < kShape.n_kv_heads; ++head) {
            EXPECT_TRUE(is_converted(22, packed_head(*record, layer, KvPart::kK, token, head),
                                     packed_head(*made, layer, KvPart::kK, token, head)));
            EXPECT_TRUE(is_converted(70, packed_head(*record, layer, KvPart::kV, token, head),
                                     packed_head(*made, layer, KvPart::kV, token, head)));
          }
        }
      }
    }
  }
}

TEST(Transcode, ToItsOwnCodecChangesNothing) {
  for (const KvCodec codec : kCodecs) {
    const auto captured = transcoded(*random_record(meta_of(kShape, KvCodec::kF32), 5, 3), codec);
    EXPECT_TRUE(same_bytes(*captured, *transcoded(*captured, codec))) << codec_name(codec);
  }
}

TEST(Transcode, WiderAndBackGivesTheSameBytes) {
  const auto floats = random_record(meta_of(kShape, KvCodec::kF32), 5, 4);
  for (const KvCodec codec : kCodecs) {
    const auto narrow = transcoded(*floats, codec);
    const auto wide = transcoded(*narrow, KvCodec::kF32);
    EXPECT_TRUE(same_bytes(*narrow, *transcoded(*wide, codec))) << codec_name(codec);
  }
}

TEST(Transcode, WhatAScaledCodecCannotHoldIsRefused) {
  RecordBuilder builder =
      std::move(RecordBuilder::create(meta_of(kShape, KvCodec::kF16), std::vector<TokenId>(3)))
          .value();
  const std::uint16_t infinity = 0x7C00;
  std::memcpy(builder.layer_v(1) + 2 * 70, &infinity, sizeof(infinity));
  const auto record = std::move(builder).seal();
  const Status status = transcode_record(*record, KvCodec::kQ8).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("layer 1, token 0, head 1"), std::string::npos)
      << status.message();
  EXPECT_TRUE(transcode_record(*record, KvCodec::kBf16).ok());
}

TEST(Transcode, ADescriptionHasNothingToConvert) {
  const auto record = random_record(meta_of(kShape, KvCodec::kF16), 2, 1);
  const auto described = Record::describe(record->meta(), record->token_ids());
  ASSERT_TRUE(described.ok());
  EXPECT_EQ(transcode_record(**described, KvCodec::kQ8).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(transcode_record(*record, KvCodec{99}).status().code(), StatusCode::kInvalidArgument);
}

TEST(Transcode, KeysOfALayerAsFloats) {
  for (const KvCodec codec : kCodecs) {
    RecordBuilder builder =
        std::move(RecordBuilder::create(meta_of(kShape, codec), std::vector<TokenId>(3))).value();
    fill_random(codec, builder.layer_k(1), 3 * kShape.k_elements(), 5);
    fill_scales(builder, 6);
    for (const bool biased : {false, true}) {
      std::vector<float> bias(biased ? kShape.n_layers * kShape.k_elements() : 0);
      std::iota(bias.begin(), bias.end(), -50.0F);
      const auto table =
          RopeTable::build(specs_of_every_scaling(RopePairing::kHalves, 8)[0], 8, bias);
      const std::vector<float> keys = layer_keys_as_floats(builder, 1, **table);
      ASSERT_EQ(keys.size(), 3 * kShape.k_elements());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const Head head = packed_head(builder, 1, KvPart::kK, i / 66, i % 66 / 22);
        const double added = biased ? bias[kShape.k_elements() + i % 66] : 0;
        EXPECT_EQ(keys[i], static_cast<float>(head.value(i % 22) + added));
      }
    }
  }
}

}  // namespace
}  // namespace inferscale::kernels
