#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "unit/kv/sample_records.h"

namespace inferscale::testing {
namespace {

constexpr std::string_view kSecret = "installation secret";

RecordKey key(const RecordMeta& meta, const std::vector<TokenId>& tokens,
              std::string_view secret = kSecret) {
  return make_record_key(as_byte_span(secret), meta, tokens);
}

// Expected values were computed with Python's hmac and hashlib from docs/format.md's definitions.
TEST(RecordKey, IsTheHmacOfItsParts) {
  EXPECT_EQ(key(sample_meta({}), {1, 300}).value.to_hex(), "66dd15d172def9a986c453c608da90b3");
}

TEST(ContextId, IsTheShaOfItsParts) {
  const std::vector<TokenId> attended = {7, 8, 9};
  const std::vector<RecordKey> injected = {RecordKey{hash_of(0x44)}};
  EXPECT_EQ(make_context_id(ContextKind::kWindow, attended, injected).to_hex(),
            "e1f8d5438736625b6736a116886156c8");
}

TEST(RecordKey, DependsOnEveryPartAndOnTheSecret) {
  const RecordMeta base = sample_meta({});
  std::set<RecordKey> keys = {key(base, {1, 2})};
  RecordMeta meta = base;
  meta.scope = hash_of(9);
  keys.insert(key(meta, {1, 2}));
  meta = base;
  meta.model_fingerprint = hash_of(9);
  keys.insert(key(meta, {1, 2}));
  meta = base;
  meta.context_id = hash_of(9);
  keys.insert(key(meta, {1, 2}));
  keys.insert(key(base, {2, 1}));
  keys.insert(key(base, {1}));
  keys.insert(key(base, {}));
  keys.insert(key(base, {1, 2}, "another secret"));
  std::swap(meta.scope, meta.context_id);
  keys.insert(key(meta, {1, 2}));
  EXPECT_EQ(keys.size(), 9U);
}

TEST(ContextId, DependsOnKindTokensAndInjectedKeysApart) {
  std::set<Hash128> ids;
  for (int kind = 0; kind <= 11; ++kind) {
    ids.insert(make_context_id(static_cast<ContextKind>(kind), {}, {}));
  }
  const std::vector<TokenId> tokens = {1, 2};
  const std::vector<RecordKey> keys = {key_of(1), key_of(2)};
  const std::vector<RecordKey> swapped = {key_of(2), key_of(1)};
  ids.insert(make_context_id(ContextKind::kLog, tokens, {}));
  ids.insert(make_context_id(ContextKind::kLog, {}, keys));
  ids.insert(make_context_id(ContextKind::kLog, {}, swapped));
  ids.insert(make_context_id(ContextKind::kLog, tokens, keys));
  EXPECT_EQ(ids.size(), 16U);
}

TEST(TokenHash, IsThatOfTheHeader) {
  const auto record = make_tiny_record();
  EXPECT_EQ(token_hash(record->token_ids()),
            xxh3_128(record->bytes().subspan(record_format::kHeaderBytes, 8)));
  EXPECT_NE(token_hash(std::vector<TokenId>{1, 2}), token_hash(std::vector<TokenId>{2, 1}));
}

TEST(Names, AreDistinctAndCoverEveryValue) {
  std::set<std::string> names;
  for (int kind = 0; kind <= 11; ++kind) {
    names.insert(context_kind_name(static_cast<ContextKind>(kind)));
  }
  EXPECT_EQ(names.size(), 12U);
  EXPECT_STREQ(context_kind_name(ContextKind::kWindow), "window");
  EXPECT_STREQ(context_kind_name(ContextKind{99}), "unknown");
  names.clear();
  for (int reason = 0; reason <= 8; ++reason) {
    names.insert(miss_reason_name(static_cast<MissReason>(reason)));
  }
  EXPECT_EQ(names.size(), 9U);
  EXPECT_STREQ(miss_reason_name(MissReason::kChecksum), "bad_checksum");
  EXPECT_STREQ(miss_reason_name(MissReason{99}), "unknown");
}

TEST(Codec, ElementBytes) {
  EXPECT_EQ(codec_element_bytes(KvCodec::kF16), 2U);
  EXPECT_EQ(codec_element_bytes(KvCodec::kF32), 4U);
  EXPECT_EQ(codec_element_bytes(KvCodec::kBf16), 2U);
  EXPECT_EQ(codec_element_bytes(KvCodec{0}), 0U);
  EXPECT_EQ(codec_element_bytes(KvCodec{200}), 0U);
  EXPECT_EQ(codec_element_bytes(KvCodec::kQ4), 0U);
  EXPECT_EQ(codec_head_bytes(KvCodec::kF32, 5), 20U);
  EXPECT_EQ(codec_head_bytes(KvCodec::kQ8, 5), 5U);
  EXPECT_EQ(codec_head_bytes(KvCodec::kQ4, 5), 3U);
  EXPECT_EQ(codec_head_bytes(KvCodec::kQ4, 64), 32U);
  EXPECT_EQ(codec_head_bytes(KvCodec{200}, 64), 0U);
  EXPECT_TRUE(codec_is_known(KvCodec::kQ4));
  EXPECT_FALSE(codec_is_known(KvCodec{0}));
  EXPECT_FALSE(codec_is_known(KvCodec{200}));
  for (const KvCodec codec : {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16, KvCodec::kQ8,
                              KvCodec::kFp8E4m3, KvCodec::kQ4}) {
    EXPECT_EQ(codec_from_name(codec_name(codec)), codec);
  }
  EXPECT_EQ(codec_from_name("?"), std::nullopt);
  EXPECT_STREQ(codec_name(KvCodec{200}), "?");
}

TEST(Codec, WhatMayBeginASequenceIsKeptWiderThanQ4) {
  for (int kind = 0; kind <= static_cast<int>(ContextKind::kParked); ++kind) {
    const auto context = static_cast<ContextKind>(kind);
    const bool begins = context == ContextKind::kPrefix || context == ContextKind::kAlone ||
                        context == ContextKind::kParked;
    EXPECT_EQ(codec_for_context(KvCodec::kQ4, context), begins ? KvCodec::kQ8 : KvCodec::kQ4);
    EXPECT_EQ(codec_for_context(KvCodec::kF16, context), KvCodec::kF16);
    EXPECT_EQ(codec_for_context(KvCodec::kFp8E4m3, context), KvCodec::kFp8E4m3);
  }
}

}  // namespace
}  // namespace inferscale::testing
