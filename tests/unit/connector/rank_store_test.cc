#include "connector/rank_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "unit/connector/rank_fixture.h"
#include "unit/kv/files.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(OnHostAndDevice, RankStoreTest, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "Device" : "Host"; });

TEST_P(RankStoreTest, GivesBackWhatWasCaptured) {
  const auto store = open(options());
  const Rows rows(3, model().shape, 1);
  ASSERT_TRUE(capture(*store, 1, rows).ok());
  EXPECT_TRUE(store->contains(key_of(1)));
  Rows back(3);
  ASSERT_TRUE(compose(*store, {item_of(1, 10)}, back).ok());
  EXPECT_LT(largest_difference(back.k, rows.k), 1e-5F);
  EXPECT_EQ(back.v, rows.v);
  ASSERT_TRUE(compose(*store, {item_of(1, 11)}, back).ok());
  EXPECT_GT(largest_difference(back.k, rows.k), 0.1F) << "keys elsewhere are turned";
  EXPECT_EQ(back.v, rows.v);
}

TEST_P(RankStoreTest, ScaledRecordsAreWithinAStepOfWhatWasCaptured) {
  for (const KvCodec codec : {KvCodec::kQ8, KvCodec::kFp8E4m3}) {
    RankStoreOptions scaled = options();
    scaled.codec = codec;
    const auto store = open(scaled);
    EXPECT_EQ(store->token_bytes(), kv_token_bytes(model().shape, codec));
    const Rows rows(3, model().shape, 1);
    ASSERT_TRUE(capture(*store, 1, rows).ok());
    Rows back(3);
    ASSERT_TRUE(compose(*store, {item_of(1, 10)}, back).ok());
    const float step = codec == KvCodec::kQ8 ? 1.0F / 127 : 1.0F / 14;  // of the largest element
    EXPECT_LT(largest_difference(back.k, rows.k), 3 * step);
    EXPECT_LT(largest_difference(back.v, rows.v), 2 * step);
    EXPECT_GT(largest_difference(back.v, rows.v), 0.0F) << "it is quantised";
  }
}

// A device's pages, captures among them, are in q8 then.
TEST_P(RankStoreTest, RecordsInQ4AreTranscodedWhenTheyAreStored) {
  RankStoreOptions packed = options();
  packed.codec = KvCodec::kQ4;
  const auto store = open(packed);
  EXPECT_EQ(store->token_bytes(), kv_token_bytes(model().shape, KvCodec::kQ8));
  const Rows rows(3, model().shape, 1);
  ASSERT_TRUE(capture(*store, 1, rows).ok());
  CaptureMeta prefix = meta_of(2);
  prefix.context_kind = ContextKind::kPrefix;
  ASSERT_TRUE(store->capture(prefix, tokens_of(2), 10, rows.const_layout()).ok());
  const auto records = store->records();
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 2U);
  for (const StoredRecord& record : *records) {
    EXPECT_EQ(record.meta.codec, record.key == key_of(1) ? KvCodec::kQ4 : KvCodec::kQ8)
        << "what begins a sequence is kept wider";
  }
  Rows back(3);
  ASSERT_TRUE(compose(*store, {item_of(1, 10)}, back).ok());
  // Each of the 8 or 4 levels that make an element is off by a sixteenth of the largest at most.
  const float largest = *std::ranges::max_element(rows.k);
  EXPECT_LT(largest_difference(back.k, rows.k), 8.0F / 16 * largest);
  EXPECT_LT(largest_difference(back.v, rows.v), 4.1F / 16 * largest);
  EXPECT_GT(largest_difference(back.v, rows.v), 2.0F / 127) << "it is quantised";
}

// [layer][head][channel], apart by far from head to head and from layer to layer.
std::vector<float> key_bias(const KvShape& shape, std::uint32_t first_head) {
  std::vector<float> bias;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (std::uint32_t head = first_head; head < first_head + shape.n_kv_heads; ++head) {
      for (std::uint32_t i = 0; i < shape.head_dim_k; ++i) {
        bias.push_back(static_cast<float>(50 * (head + 1) * (i % 2) * (layer + 1)));
      }
    }
  }
  return bias;
}

// A rank's rows: `plain` with the bias of its heads, at positions 10 and on.
Rows biased_rows(const Rows& plain, const std::vector<float>& bias) {
  RecordMeta meta;
  meta.shape = plain.shape;
  meta.codec = KvCodec::kF32;
  RecordBuilder builder = RecordBuilder::create(meta, tokens_of(1)).value();
  for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
    const std::size_t k = plain.rows * meta.shape.k_elements();
    const std::size_t v = plain.rows * meta.shape.v_elements();
    std::memcpy(builder.layer_k(layer), plain.k.data() + layer * k, k * sizeof(float));
    std::memcpy(builder.layer_v(layer), plain.v.data() + layer * v, v * sizeof(float));
  }
  const auto record = std::move(builder).seal();
  Rows cache(plain.rows, plain.shape);
  const ComposeItem items[] = {{record.get(), 10, 0, {}}};
  const auto table = RopeTable::build(model().rope, 64, bias);
  EXPECT_TRUE(kv_compose(items, **table, cache.layout()).ok());
  return cache;
}

// Heads are dealt to ranks as an engine does; one that is several ranks' is that of neighbours.
TEST_P(RankStoreTest, EveryRankTakesTheBiasOfItsOwnHeadsAway) {
  struct Rank {
    std::uint32_t shards, index, first_head, heads;
  };
  for (const Rank& rank :
       {Rank{1, 0, 0, 4}, {2, 1, 2, 2}, {4, 3, 3, 1}, {8, 0, 0, 1}, {8, 5, 2, 1}}) {
    KvShape shape = model().shape;
    shape.n_kv_heads = rank.heads;
    const Rows cache = biased_rows(Rows(3, shape, 1), key_bias(shape, rank.first_head));
    for (const bool known : {false, true}) {
      RankStoreOptions biased = options();
      biased.codec = KvCodec::kQ8;
      biased.shard_count = rank.shards;
      biased.shard_index = rank.index;
      if (known) {
        biased.spec.key_bias = key_bias(model().shape, 0);
      }
      const auto store = open(biased);
      ASSERT_TRUE(capture(*store, 1, cache).ok());
      Rows back(3, shape);
      ASSERT_TRUE(compose(*store, {item_of(1, 10)}, back).ok());
      const float difference = largest_difference(back.k, cache.k);
      EXPECT_TRUE(known ? difference < 0.03F : difference > 0.1F)
          << difference << ", rank " << rank.index << " of " << rank.shards;
    }
  }
}

TEST_P(RankStoreTest, RowsThatAScaledCodecCannotHoldAreNeverStored) {
  RankStoreOptions scaled = options();
  scaled.codec = KvCodec::kQ8;
  const auto store = open(scaled);
  Rows rows(3, model().shape, 1);
  rows.v[rows.v.size() - 2] = INFINITY;
  const Status refused = capture(*store, 1, rows);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("value of layer 1, token 2, head 3"), std::string::npos)
      << refused.message();
  EXPECT_FALSE(store->contains(key_of(1)));
  EXPECT_TRUE(capture(*store, 1, Rows(3, model().shape, 1)).ok());
}

// A directory that was filled under another setting.
TEST_P(RankStoreTest, RecordsOfAnotherCodecAreUsedAsWell) {
  const TempDirectory directory;
  const Rows rows(3, model().shape, 1);
  RankStoreOptions before = options(directory.path());
  before.codec = KvCodec::kF16;
  ASSERT_TRUE(capture(*open(before), 1, rows).ok());
  RankStoreOptions after = options(directory.path());
  after.codec = KvCodec::kQ8;
  const auto store = open(after);
  Rows back(3);
  if (with_device()) {
    ASSERT_TRUE(bind(*store, back).ok());
  }
  ASSERT_TRUE(compose(*store, {item_of(1, 10)}, back).ok());
  EXPECT_LT(largest_difference(back.v, rows.v), 2.0F / 127);
  EXPECT_GT(largest_difference(back.v, rows.v), 0.0F);
}

TEST_P(RankStoreTest, LoadsFollowEachOtherInTheRows) {
  const auto store = open(options());
  const Rows a(3, model().shape, 1), b(3, model().shape, 2);
  ASSERT_TRUE(capture(*store, 1, a).ok());
  ASSERT_TRUE(capture(*store, 2, b).ok());
  const std::vector<LoadItem> first = {item_of(2, 10), item_of(1, 10)};
  const std::vector<LoadItem> second = {item_of(2, 10)};
  const PreparedLoad loads[] = {store->prepare(first), store->prepare(second)};
  EXPECT_EQ(loads[0].tokens(), 6U);
  const PreparedLoad* const both[] = {&loads[0], &loads[1]};
  Rows out(9);
  ASSERT_TRUE(place(*store, both, out).ok());
  const std::size_t row = model().shape.v_elements();
  for (std::size_t i = 0; i < 3 * row; ++i) {
    EXPECT_EQ(out.v[i], b.v[i]);
    EXPECT_EQ(out.v[3 * row + i], a.v[i]);
    EXPECT_EQ(out.v[6 * row + i], b.v[i]);
  }
}

TEST_P(RankStoreTest, ARequestThatDoesNotMatchGetsNothing) {
  const auto store = open(options());
  ASSERT_TRUE(capture(*store, 1, Rows(3, model().shape, 1)).ok());
  const auto code = [&](auto change) {
    LoadItem item = item_of(1, 10);
    change(item);
    const PreparedLoad load = store->prepare(std::span(&item, 1));
    EXPECT_TRUE(load.status().ok() || load.failed_key() == item.key);
    EXPECT_EQ(load.tokens(), load.status().ok() ? 3U : 0U);
    Rows out(3);
    const PreparedLoad* const loads[] = {&load};
    EXPECT_EQ(place(*store, loads, out).ok(), load.status().ok());
    EXPECT_EQ(out.v == Rows(3).v, !load.status().ok()) << "a load that failed writes nothing";
    return load.status().code();
  };
  EXPECT_EQ(code([](LoadItem&) {}), StatusCode::kOk);
  EXPECT_EQ(code([](LoadItem& i) { i.context_id.reset(); }), StatusCode::kOk);
  EXPECT_EQ(code([](LoadItem& i) { i.key = key_of(2); }), StatusCode::kNotFound);
  EXPECT_EQ(code([](LoadItem& i) { i.scope = hash_of(1); }), StatusCode::kPermissionDenied);
  EXPECT_EQ(code([](LoadItem& i) { i.context_id = hash_of(1); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](LoadItem& i) { ++i.tokens[2]; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](LoadItem& i) { i.tokens.pop_back(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](LoadItem& i) { i.first_position = 61; }), StatusCode::kOk);
  EXPECT_EQ(code([](LoadItem& i) { i.first_position = 62; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](LoadItem& i) { i.first_position = 0xFFFFFFFF; }), StatusCode::kInvalidArgument);
}

TEST_P(RankStoreTest, RowsThatDoNotFitAreRefused) {
  const auto store = open(options());
  ASSERT_TRUE(capture(*store, 1, Rows(3, model().shape, 1)).ok());
  Rows few(2), many(4), shape(3, {2, kHeads, 8, 8}), layers(3, {1, kHeads, 8, 4});
  for (Rows* rows : {&few, &many, &shape, &layers}) {
    EXPECT_EQ(compose(*store, {item_of(1, 10)}, *rows).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(capture(*store, 2, *rows).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(capture(*store, 2, Rows(3), 62).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(store->contains(key_of(2)));
  EXPECT_TRUE(compose(*store, {}, *std::make_unique<Rows>(0)).ok());
}

TEST_P(RankStoreTest, OptionsAreChecked) {
  const auto code = [](auto change) {
    RankStoreOptions changed = options();
    change(changed);
    return RankStore::open(changed).status().code();
  };
  EXPECT_EQ(code([](auto& o) { o.max_positions = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.spec.shape.n_layers = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.spec.rope.rotary_dim = 10; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.spec.rope.rotary_dim = 7; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.codec = static_cast<KvCodec>(9); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.threads = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.threads = 17; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.shard_count = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.shard_index = 1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.spec.key_bias.resize(5); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.shard_count = 3; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.host_budget_bytes = 0; }), StatusCode::kInvalidArgument);
}

TEST_P(RankStoreTest, ARankHoldsItsShareOfTheHeads) {
  for (const auto& [shards, heads] : {std::pair{1U, 4U}, {2U, 2U}, {4U, 1U}, {8U, 1U}}) {
    RankStoreOptions sharded = options();
    sharded.shard_count = shards;
    sharded.shard_index = shards - 1;
    EXPECT_EQ(open(sharded)->shape().n_kv_heads, heads);
  }
}

TEST_P(RankStoreTest, RecordsOfAnotherShardOrModelAreNotServed) {
  const TempDirectory directory;
  RankStoreOptions sharded = options(directory.path());
  sharded.shard_count = 2;
  KvShape half = model().shape;
  half.n_kv_heads = 2;
  ASSERT_TRUE(capture(*open(sharded), 1, Rows(3, half, 1)).ok());
  const auto code = [](RankStore& store) {
    const LoadItem item = item_of(1, 10);
    return store.prepare(std::span(&item, 1)).status().code();
  };
  EXPECT_EQ(code(*open(sharded)), StatusCode::kOk);
  RankStoreOptions other = sharded;
  other.shard_index = 1;
  RankStoreOptions model = sharded;
  model.spec.fingerprint = hash_of(1);
  for (const RankStoreOptions& wrong : {other, model}) {
    const auto store = open(wrong);
    EXPECT_TRUE(store->records()->empty());
    EXPECT_EQ(store->verify()->foreign, 1U);
    const RecordKey key[] = {key_of(1)};
    EXPECT_TRUE(store->check(key)->sound.empty());
    EXPECT_EQ(code(*store), StatusCode::kInvalidArgument);
  }
}

TEST_P(RankStoreTest, ARestartFindsTheRecords) {
  const TempDirectory directory;
  const Rows rows(3, model().shape, 1);
  {
    const auto store = open(options(directory.path()));
    EXPECT_EQ(RankStore::open(options(directory.path())).status().code(), StatusCode::kConflict);
    for (const std::uint32_t number : {1U, 2U, 3U}) {
      ASSERT_TRUE(capture(*store, number, rows).ok());
    }
    const RecordKey gone[] = {key_of(2)};
    EXPECT_EQ(store->erase(gone)->disk, 1U);
  }
  const auto store = open(options(directory.path()));
  const Result<std::vector<StoredRecord>> records = store->records();
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 2U);
  for (const StoredRecord& record : *records) {
    const std::uint32_t number = record.key == key_of(1) ? 1 : 3;
    EXPECT_EQ(record.key, key_of(number));
    EXPECT_EQ(record.tokens, tokens_of(number));
    EXPECT_EQ(record.meta.scope, hash_of(0x33));
    EXPECT_EQ(record.meta.context_id, hash_of(0x22));
    EXPECT_EQ(record.meta.context_kind, ContextKind::kWindow);
    EXPECT_EQ(record.meta.context_tokens, 7U);
  }
  Rows back(3);
  ASSERT_TRUE(compose(*store, {item_of(3, 10)}, back).ok());
  EXPECT_EQ(back.v, rows.v);
}

// Flips a bit of each segment.
void damage(const std::filesystem::path& directory, std::size_t at) {
  for (const auto& path : files_below(directory / "kv")) {
    std::vector<std::byte> bytes = read_bytes(path);
    if (bytes.size() > 700) {
      bytes[at] ^= std::byte{1};
      write_bytes(path, bytes);
    }
  }
}

// Listing reads headers and token ids alone: values are verified at first use.
TEST_P(RankStoreTest, DamagedRecordsAreNamedAndDropped) {
  const TempDirectory directory;
  ASSERT_TRUE(capture(*open(options(directory.path())), 1, Rows(3, model().shape, 1)).ok());
  damage(directory.path(), 600);  // in the middle of the record's values
  const auto store = open(options(directory.path()));
  ASSERT_TRUE(store->contains(key_of(1)));
  EXPECT_EQ(store->records()->size(), 1U);
  EXPECT_EQ(store->unreadable(), 0U);
  const LoadItem item = item_of(1, 10);
  const PreparedLoad load = store->prepare(std::span(&item, 1));
  EXPECT_EQ(load.status().code(), StatusCode::kDataLoss) << load.status().to_string();
  EXPECT_EQ(load.failed_key(), key_of(1));
  EXPECT_FALSE(store->contains(key_of(1)));
  EXPECT_TRUE(store->verify()->corrupt.empty());
}

TEST_P(RankStoreTest, ChecksTheRecordsThatAreNamed) {
  const TempDirectory directory;
  {
    const auto store = open(options(directory.path()));
    ASSERT_TRUE(capture(*store, 1, Rows(3, model().shape, 1)).ok());
    ASSERT_TRUE(capture(*store, 2, Rows(3, model().shape, 2)).ok());
  }
  damage(directory.path(), 600);  // in the first record's values
  const auto store = open(options(directory.path()));
  const RecordKey second[] = {key_of(2), key_of(3)};
  auto checked = store->check(second);
  EXPECT_EQ(checked->sound, std::vector{key_of(2)}) << "the third was never stored";
  EXPECT_TRUE(checked->corrupt.empty());
  EXPECT_TRUE(store->contains(key_of(1))) << "nobody has looked at it";
  const RecordKey both[] = {key_of(1), key_of(2)};
  checked = store->check(both);
  EXPECT_EQ(checked->sound, std::vector{key_of(2)});
  EXPECT_EQ(checked->corrupt, std::vector{key_of(1)});
  EXPECT_FALSE(store->contains(key_of(1)));
  EXPECT_EQ(store->stats()->tiers.back().hits, 0U) << "checking is not using";
  store->close();
  EXPECT_EQ(store->check(both).status().code(), StatusCode::kUnavailable);
}

TEST_P(RankStoreTest, RecordsWithOtherTokenIdsAreNotListed) {
  const TempDirectory directory;
  ASSERT_TRUE(capture(*open(options(directory.path())), 1, Rows(3, model().shape, 1)).ok());
  damage(directory.path(), 64 + 64 + 152 + 1);  // headers of segment, entry and record
  const auto store = open(options(directory.path()));
  EXPECT_TRUE(store->records()->empty());
  EXPECT_EQ(store->unreadable(), 1U);
  EXPECT_FALSE(store->contains(key_of(1)));
}

TEST_P(RankStoreTest, ALoadOutlivesAnEraseAndTheStore) {
  auto store = open(options());
  const Rows rows(3, model().shape, 1);
  ASSERT_TRUE(capture(*store, 1, rows).ok());
  const LoadItem item = item_of(1, 10);
  const PreparedLoad load = store->prepare(std::span(&item, 1));
  const Result<EraseCounts> counts = store->erase_scope(hash_of(0x33));
  EXPECT_EQ(counts->host, 1U);
  EXPECT_EQ(counts->leased, 1U);
  EXPECT_EQ(store->prepare(std::span(&item, 1)).status().code(), StatusCode::kNotFound);
  Rows out(3);
  ASSERT_TRUE(!with_device() || bind(*store, out).ok());
  store->close();
  const PreparedLoad* const loads[] = {&load};
  EXPECT_TRUE(place(*store, loads, out).ok());
  EXPECT_EQ(out.v, rows.v);
}

TEST_P(RankStoreTest, AClosedStoreSaysSo) {
  const TempDirectory directory;
  const auto store = open(options(directory.path()));
  const Rows rows(3, model().shape, 1);
  ASSERT_TRUE(capture(*store, 1, rows).ok());
  store->close();
  store->close();
  const LoadItem item = item_of(1, 10);
  EXPECT_EQ(store->prepare(std::span(&item, 1)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(capture(*store, 1, rows).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->erase({}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->stats().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->records().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->flush().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(store->contains(key_of(1)));
  EXPECT_NE(open(options(directory.path())), nullptr) << "the directory is free again";
}

}  // namespace
}  // namespace inferscale::testing
