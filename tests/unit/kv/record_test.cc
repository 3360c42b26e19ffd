#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "inferscale/kv_record.h"
#include "kv/record_format.h"
#include "kv/record_header.h"
#include "unit/kv/sample_records.h"

namespace inferscale::testing {
namespace {

using ::testing::HasSubstr;
namespace format = record_format;

StatusCode parse_code(std::span<const std::byte> bytes) {
  return Record::parse(bytes).status().code();
}

void set_u32(std::vector<std::byte>& bytes, std::size_t offset, std::uint32_t value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

TEST(Record, RoundTripsEveryFieldAndByte) {
  for (const KvCodec codec : {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16, KvCodec::kQ8,
                              KvCodec::kFp8E4m3, KvCodec::kQ4}) {
    for (const std::uint32_t n_tokens : {1U, 2U, 3U, 10U, 11U, 28U}) {
      const SampleOptions options{codec, {3, 2, 6, 5}, n_tokens, 0x44, n_tokens};
      const auto record = make_record(options);
      const auto parsed = Record::parse(record->bytes());
      ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
      const Record& copy = **parsed;
      EXPECT_EQ(copy.meta(), sample_meta(options));
      EXPECT_TRUE(std::equal(copy.token_ids().begin(), copy.token_ids().end(),
                             record->token_ids().begin(), record->token_ids().end()));
      EXPECT_TRUE(same_bytes(copy.bytes(), record->bytes()));
      EXPECT_NE(copy.bytes().data(), record->bytes().data());
      EXPECT_TRUE(copy.verify().ok());
      EXPECT_EQ(copy.bytes().size(), record_bytes(copy.meta(), n_tokens));
    }
  }
}

TEST(Record, LayersAreAlignedInOrderAndInside) {
  const auto record = make_record({KvCodec::kF16, {5, 3, 2, 7}, 3, 0x33, 1});
  const std::byte* end = record->bytes().data() + record->bytes().size();
  const std::size_t k_bytes = 3 * 3 * 2 * 2;
  const std::size_t v_bytes = 3 * 3 * 7 * 2;
  const std::byte* previous_end = record->bytes().data() + format::kHeaderBytes + 3 * 4;
  for (std::uint32_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(record->layer_k(layer)) % 64, 0U);
    EXPECT_GE(record->layer_k(layer), previous_end);
    EXPECT_EQ(record->layer_v(layer), record->layer_k(layer) + k_bytes);
    previous_end = record->layer_v(layer) + v_bytes;
  }
  EXPECT_LE(previous_end, end);
  EXPECT_EQ(record->bytes().size() % 64, 0U);
}

TEST(Record, ScalesStandAlignedBehindTheValues) {
  for (const KvShape& shape : {KvShape{5, 3, 2, 7}, KvShape{2, 1, 64, 64}, KvShape{1, 2, 6, 5}}) {
    const auto record = make_record({KvCodec::kQ8, shape, 3, 0x33, 1});
    const std::size_t v_end = 3 * (shape.k_elements() + shape.v_elements());
    const std::size_t scales = 3 * shape.n_kv_heads * sizeof(float);
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
      const std::byte* k = record->layer_k(layer);
      const std::byte* k_scales = record->layer_part(layer, KvPart::kKScales);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(k) % 64, 0U);
      EXPECT_EQ(record->layer_v(layer), k + 3 * shape.k_elements());
      EXPECT_EQ(k_scales, k + (v_end + 15) / 16 * 16);
      EXPECT_EQ(record->layer_part(layer, KvPart::kVScales), k_scales + scales);
      EXPECT_LE(k_scales + 2 * scales, record->bytes().data() + record->bytes().size());
    }
    EXPECT_EQ(kv_token_bytes(shape, KvCodec::kQ8),
              shape.n_layers *
                  (shape.k_elements() + shape.v_elements() + shape.n_kv_heads * std::size_t{8}));
  }
}

TEST(Record, MeansOfQ4StandBehindTheScales) {
  for (const KvShape& shape : {KvShape{5, 3, 2, 7}, KvShape{2, 1, 64, 64}, KvShape{1, 2, 6, 5}}) {
    const auto record = make_record({KvCodec::kQ4, shape, 3, 0x33, 1});
    const std::size_t k_bytes = 3 * shape.n_kv_heads * (shape.head_dim_k / 2);
    const std::size_t v_bytes = 3 * shape.n_kv_heads * ((shape.head_dim_v + 1) / 2);
    const std::size_t scales = 3 * shape.n_kv_heads * sizeof(float);
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
      const std::byte* k = record->layer_k(layer);
      const std::byte* k_scales = record->layer_part(layer, KvPart::kKScales);
      const std::byte* means = record->layer_part(layer, KvPart::kKMeans);
      EXPECT_EQ(record->layer_v(layer), k + k_bytes);
      EXPECT_EQ(k_scales, k + (k_bytes + v_bytes + 15) / 16 * 16);
      EXPECT_EQ(means, k_scales + 2 * scales);
      EXPECT_LE(means + 2 * shape.k_elements(), record->bytes().data() + record->bytes().size());
    }
  }
  EXPECT_EQ(part_bytes({1, 3, 64, 64}, KvCodec::kQ4, KvPart::kKMeans, 100), 384U);
  EXPECT_EQ(part_bytes({1, 3, 64, 64}, KvCodec::kQ8, KvPart::kKMeans, 100), 0U);
  EXPECT_EQ(part_token_bytes({1, 3, 64, 64}, KvCodec::kQ4, KvPart::kKMeans), 0U);
}

TEST(Record, ParsesFromAnyAlignment) {
  const auto record = make_record();
  for (std::size_t shift = 0; shift < 9; ++shift) {
    std::vector<std::byte> shifted(shift);
    shifted.insert(shifted.end(), record->bytes().begin(), record->bytes().end());
    EXPECT_TRUE(Record::parse(std::span(shifted).subspan(shift)).ok());
  }
}

TEST(Record, KnowsTheSizeOfSmolLm2) {
  RecordMeta meta;
  meta.shape = {30, 3, 64, 64};
  EXPECT_EQ(record_bytes(meta, 28), 320U + 645120U);
  meta.codec = KvCodec::kQ8;
  EXPECT_EQ(record_bytes(meta, 28), 320U + 30U * 11456U);
  meta.codec = KvCodec::kQ4;
  EXPECT_EQ(record_bytes(meta, 28), 320U + 30U * 6464U);
  meta.codec = KvCodec{9};
  EXPECT_EQ(record_bytes(meta, 28), 0U);
  EXPECT_EQ(record_bytes(RecordMeta{}, 28), 0U);
}

TEST(RecordDamage, EveryFlippedBitIsDetected) {
  for (const auto& record : {make_tiny_record(), make_record(), make_record({KvCodec::kQ8}),
                             make_record({KvCodec::kQ4})}) {
    std::vector<std::byte> bytes = copy_bytes(*record);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      const std::byte mask{static_cast<std::uint8_t>(1U << (bit % 8))};
      bytes[bit / 8] ^= mask;
      ASSERT_EQ(parse_code(bytes), StatusCode::kDataLoss) << "bit " << bit;
      bytes[bit / 8] ^= mask;
    }
    EXPECT_TRUE(Record::parse(bytes).ok());
  }
}

TEST(RecordDamage, EveryTruncationIsDetected) {
  for (const auto& record : {make_tiny_record(), make_record()}) {
    for (std::size_t size = 0; size < record->bytes().size(); ++size) {
      // In memory of its own, so that AddressSanitizer sees a read past the end.
      const std::vector<std::byte> cut(record->bytes().begin(), record->bytes().begin() + size);
      ASSERT_EQ(parse_code(cut), StatusCode::kDataLoss) << "length " << size;
    }
  }
}

TEST(RecordDamage, EveryExtensionIsDetected) {
  std::vector<std::byte> bytes = copy_bytes(*make_tiny_record());
  for (int extra = 1; extra <= 300; ++extra) {
    bytes.push_back(std::byte{0});
    ASSERT_EQ(parse_code(bytes), StatusCode::kDataLoss) << extra << " bytes more";
  }
}

TEST(RecordDamage, MessagesSayWhichCheckFailed) {
  const std::vector<std::byte> good = copy_bytes(*make_tiny_record());
  const auto message = [&](auto damage) {
    std::vector<std::byte> bytes = good;
    damage(bytes);
    return Record::parse(bytes).status().message();
  };
  EXPECT_THAT(message([](auto& b) { b[0] = std::byte{'X'}; }), HasSubstr("magic"));
  EXPECT_THAT(message([](auto& b) { b[4] = std::byte{2}; }), HasSubstr("version: 2"));
  EXPECT_THAT(message([](auto& b) { b[20] ^= std::byte{1}; }), HasSubstr("header: checksum"));
  EXPECT_THAT(message([](auto& b) { b[200] ^= std::byte{1}; }), HasSubstr("payload: checksum"));
  EXPECT_THAT(message([](auto& b) { b.resize(192); }), HasSubstr("192 bytes instead of 256"));
  EXPECT_THAT(message([](auto& b) { b.resize(10); }), HasSubstr("size"));
}

TEST(RecordForgery, AbsurdNumbersWithValidChecksumsAreRefused) {
  const std::size_t fields[] = {
      format::kCodecAt,         format::kContextKindAt,  format::kTokenCountAt,
      format::kLayerCountAt,    format::kHeadCountAt,    format::kHeadDimKAt,
      format::kHeadDimVAt,      format::kShardIndexAt,   format::kShardCountAt,
      format::kContextTokensAt, format::kPayloadBytesAt, format::kPayloadBytesAt + 4};
  const std::uint32_t values[] = {0,          1,          2,          3,         5,        64,
                                  255,        256,        257,        1023,      1024,     1025,
                                  1U << 16,   1U << 20,   0xFFFFF,    1U << 24,  1U << 30, 1U << 31,
                                  0x7FFFFFFF, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF};
  const std::vector<std::byte> good = copy_bytes(*make_record());
  for (const std::size_t first : fields) {
    for (const std::size_t second : fields) {
      for (const std::uint32_t a : values) {
        for (const std::uint32_t b : values) {
          std::vector<std::byte> bytes = good;
          set_u32(bytes, first, a);
          set_u32(bytes, second, b);
          reseal(bytes);
          const auto record = Record::parse(bytes);
          if (record.ok()) {  // a harmless change, e.g. of the context kind
            ASSERT_TRUE((*record)->verify().ok());
            ASSERT_TRUE(same_bytes((*record)->bytes(), bytes));
          } else {
            ASSERT_EQ(record.status().code(), StatusCode::kDataLoss);
          }
        }
      }
    }
  }
}

TEST(RecordForgery, ProductsThatWrapAroundAreRefused) {
  // 2^20 tokens of 2^10 heads of 2^10 elements in 2^10 layers, and sizes whose product modulo 2^64
  // is what the file has.
  std::vector<std::byte> bytes = copy_bytes(*make_tiny_record());
  set_u32(bytes, format::kTokenCountAt, 1U << 20);
  set_u32(bytes, format::kLayerCountAt, 1U << 10);
  set_u32(bytes, format::kHeadCountAt, 1U << 10);
  set_u32(bytes, format::kHeadDimKAt, 1U << 10);
  set_u32(bytes, format::kHeadDimVAt, 1U << 10);
  for (const std::uint32_t payload : {0U, 64U, 0xFFFFFFFFU}) {
    set_u32(bytes, format::kPayloadBytesAt, payload);
    reseal(bytes);
    EXPECT_EQ(parse_code(bytes), StatusCode::kDataLoss);
  }
  set_u32(bytes, format::kTokenCountAt, 0x80000000U);
  set_u32(bytes, format::kHeadDimKAt, 0x80000000U);
  reseal(bytes);
  EXPECT_EQ(parse_code(bytes), StatusCode::kDataLoss);
}

TEST(RecordForgery, PaddingFlagsAndTokenHashAreChecked) {
  const std::vector<std::byte> good = copy_bytes(*make_tiny_record());
  std::vector<std::byte> bytes = good;
  bytes[161] = std::byte{1};  // behind the token ids
  reseal(bytes);
  EXPECT_THAT(Record::parse(bytes).status().message(), HasSubstr("padding"));
  bytes = good;
  bytes[255] = std::byte{1};  // behind the last layer
  reseal(bytes);
  EXPECT_THAT(Record::parse(bytes).status().message(), HasSubstr("padding"));
  bytes = good;
  set_u32(bytes, format::kContextTokensAt, format::kMaxTokens + 1);
  reseal(bytes);
  EXPECT_EQ(parse_code(bytes), StatusCode::kDataLoss);
  bytes = good;
  bytes[format::kTokenHashAt] ^= std::byte{1};
  const Hash128 checksum = xxh3_128(std::span(bytes).first(format::kHeaderChecksumAt));
  std::memcpy(bytes.data() + format::kHeaderChecksumAt, checksum.bytes.data(), 16);
  EXPECT_THAT(Record::parse(bytes).status().message(), HasSubstr("token ids: hash"));
}

TEST(RecordForgery, ScalesAreChecked) {
  const auto record = make_record({KvCodec::kQ8, {2, 3, 6, 5}, 3, 0x33, 1});
  const std::vector<std::byte> good = copy_bytes(*record);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const KvPart part : {KvPart::kKScales, KvPart::kVScales}) {
    const std::byte* last = record->layer_part(1, part) + 8 * sizeof(float);
    const auto at = static_cast<std::size_t>(last - record->bytes().data());
    for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN(), -1.0F, -0.0F,
                            1e-40F, 0x1p121F, 0x1.000002p0F}) {
      std::vector<std::byte> bytes = good;
      std::memcpy(bytes.data() + at, &bad, sizeof(bad));
      reseal(bytes);
      EXPECT_EQ(parse_code(bytes), StatusCode::kDataLoss) << bad;
      EXPECT_THAT(Record::parse(bytes).status().message(), HasSubstr("scales")) << bad;
    }
    for (const float sound : {0.0F, 0x1p-110F, 1.5F}) {
      std::vector<std::byte> bytes = good;
      std::memcpy(bytes.data() + at, &sound, sizeof(sound));
      reseal(bytes);
      EXPECT_TRUE(Record::parse(bytes).ok()) << sound;
    }
  }
  const auto floats = make_record({KvCodec::kFp8E4m3});
  for (const std::byte nan : {std::byte{0x7F}, std::byte{0xFF}}) {
    std::vector<std::byte> bytes = copy_bytes(*floats);
    const std::byte* at = floats->layer_v(1) + 2;
    bytes[static_cast<std::size_t>(at - floats->bytes().data())] = nan;
    reseal(bytes);
    EXPECT_THAT(Record::parse(bytes).status().message(), HasSubstr("elements"));
  }
  std::vector<std::byte> bytes = good;  // between values and scales
  const std::byte* gap = record->layer_part(1, KvPart::kKScales) - 1;
  bytes[static_cast<std::size_t>(gap - record->bytes().data())] = std::byte{1};
  reseal(bytes);
  EXPECT_THAT(Record::parse(bytes).status().message(), HasSubstr("padding"));
}

TEST(RecordForgery, MeansAndHalvesOfQ4AreChecked) {
  const auto record = make_record({KvCodec::kQ4, {2, 3, 6, 5}, 3, 0x33, 1});
  const std::vector<std::byte> good = copy_bytes(*record);
  const auto code_with = [&](const std::byte* place, int value, std::size_t size) {
    std::vector<std::byte> bytes = good;
    std::memcpy(bytes.data() + (place - record->bytes().data()), &value, size);
    reseal(bytes);
    const Status status = Record::parse(bytes).status();
    EXPECT_TRUE(status.ok() || status.message().find("means") != std::string::npos);
    return status.code();
  };
  const std::byte* mean = record->layer_part(1, KvPart::kKMeans) + 2 * 17;
  for (const int bad : {0x7C00, 0xFC00, 0x7E00, 0xFFFF}) {
    EXPECT_EQ(code_with(mean, bad, 2), StatusCode::kDataLoss) << bad;
  }
  for (const int sound : {0x7BFF, 0xFBFF, 0x0000, 0x8000, 0x0001}) {
    EXPECT_EQ(code_with(mean, sound, 2), StatusCode::kOk) << sound;
  }
  const std::byte* last = record->layer_v(1) + 9 * 3 - 1;  // of the last head's five elements
  EXPECT_EQ(code_with(last, 0x0F, 1), StatusCode::kOk);
  for (const int bad : {0x10, 0x80, 0xF3}) {
    EXPECT_EQ(code_with(last, bad, 1), StatusCode::kDataLoss) << bad;
  }
  const float scale = 0x1p108F;
  std::vector<std::byte> bytes = good;
  std::memcpy(bytes.data() + (record->layer_part(0, KvPart::kVScales) - record->bytes().data()),
              &scale, sizeof(scale));
  reseal(bytes);
  EXPECT_EQ(parse_code(bytes), StatusCode::kDataLoss);
}

TEST(RecordVerify, SeesChangedAndWipedMemory) {
  const auto record = make_record();
  ASSERT_TRUE(record->verify().ok());
  auto* byte = const_cast<std::byte*>(record->layer_v(1));
  *byte ^= std::byte{0x10};
  EXPECT_EQ(record->verify().code(), StatusCode::kDataLoss);
  *byte ^= std::byte{0x10};
  EXPECT_TRUE(record->verify().ok());
  auto* token = const_cast<TokenId*>(record->token_ids().data());
  ++*token;
  EXPECT_EQ(record->verify().code(), StatusCode::kDataLoss);
  --*token;
  record->wipe();
  EXPECT_EQ(record->verify().code(), StatusCode::kDataLoss);
  for (const std::byte b : record->bytes()) {
    ASSERT_EQ(b, std::byte{0});
  }
  for (const TokenId id : record->token_ids()) {
    ASSERT_EQ(id, 0);
  }
}

TEST(RecordVerify, WipedRecordOfZerosDoesNotVerify) {
  RecordMeta meta;
  meta.shape = {1, 1, 2, 2};
  auto builder = std::move(RecordBuilder::create(meta, std::vector<TokenId>{0})).value();
  const auto record = std::move(builder).seal();
  ASSERT_TRUE(record->verify().ok());
  record->wipe();
  EXPECT_EQ(record->verify().code(), StatusCode::kDataLoss);
}

TEST(RecordDescription, SaysWhatTheRecordIsAndHasNoBytes) {
  const auto record = make_tiny_record();
  EXPECT_TRUE(record->has_payload());
  const auto described = Record::describe(record->meta(), record->token_ids());
  ASSERT_TRUE(described.ok());
  EXPECT_FALSE((*described)->has_payload());
  EXPECT_EQ((*described)->meta(), record->meta());
  EXPECT_TRUE(std::ranges::equal((*described)->token_ids(), record->token_ids()));
  EXPECT_TRUE((*described)->bytes().empty());
  EXPECT_EQ((*described)->verify().code(), StatusCode::kDataLoss);
  EXPECT_EQ(Record::describe(record->meta(), {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(RecordBuilder, RefusesWhatCannotBeARecord) {
  RecordMeta meta = sample_meta({});
  const std::vector<TokenId> tokens = {1, 2};
  const auto code = [&](const RecordMeta& m, std::span<const TokenId> t) {
    return RecordBuilder::create(m, t).status().code();
  };
  EXPECT_EQ(code(meta, tokens), StatusCode::kOk);
  EXPECT_EQ(code(meta, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(meta, std::vector<TokenId>((1U << 20) + 1)), StatusCode::kInvalidArgument);
  for (auto change : std::vector<void (*)(RecordMeta&)>{
           [](RecordMeta& m) { m.shape.n_layers = 0; },
           [](RecordMeta& m) { m.shape.n_layers = 1025; },
           [](RecordMeta& m) { m.shape.n_kv_heads = 0; },
           [](RecordMeta& m) { m.shape.head_dim_k = 3; },
           [](RecordMeta& m) { m.shape.head_dim_v = 5000; },
           [](RecordMeta& m) { m.shard_count = 0; }, [](RecordMeta& m) { m.shard_index = 1; },
           [](RecordMeta& m) { m.codec = KvCodec{0}; },
           [](RecordMeta& m) { m.codec = KvCodec{77}; },
           [](RecordMeta& m) { m.context_kind = ContextKind{13}; }}) {
    RecordMeta bad = meta;
    change(bad);
    EXPECT_EQ(code(bad, tokens), StatusCode::kInvalidArgument);
    EXPECT_EQ(record_bytes(bad, 2), 0U);
  }
  meta.shape = {1024, 1024, 1024, 1024};
  EXPECT_EQ(code(meta, std::vector<TokenId>(1U << 20)), StatusCode::kResourceExhausted);
}

TEST(RecordBuilder, KeepsNegativeAndLargeTokenIds) {
  const std::vector<TokenId> tokens = {0, -1, std::numeric_limits<TokenId>::min(),
                                       std::numeric_limits<TokenId>::max()};
  auto builder = std::move(RecordBuilder::create(sample_meta({}), tokens)).value();
  const auto sealed = std::move(builder).seal();
  const auto parsed = Record::parse(sealed->bytes());
  ASSERT_TRUE(parsed.ok());
  EXPECT_THAT((*parsed)->token_ids(), ::testing::ElementsAreArray(tokens));
}

TEST(RecordBuilder, SealsOnlyOnce) {
  auto builder = std::move(RecordBuilder::create(sample_meta({}), std::vector<TokenId>{1})).value();
  EXPECT_NE(std::move(builder).seal(), nullptr);
  EXPECT_EQ(std::move(builder).seal(), nullptr);
}

TEST(RecordHeader, NeedsNothingBehindIt) {
  const auto record = make_record();
  const auto header = decode_record_header(record->bytes().first(format::kHeaderBytes));
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->meta, record->meta());
  EXPECT_EQ(record_layout(header->meta, header->n_tokens).total_bytes, record->bytes().size());
  EXPECT_EQ(header->token_hash, token_hash(record->token_ids()));
}

}  // namespace
}  // namespace inferscale::testing
