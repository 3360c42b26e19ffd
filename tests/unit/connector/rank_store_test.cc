#include "connector/rank_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "unit/kv/files.h"
#include "unit/kv/sample_records.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

constexpr std::uint32_t kHeads = 4;

ModelSpec model() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.shape = {2, kHeads, 8, 4};
  spec.rope.pairing = RopePairing::kHalves;
  spec.rope.rotary_dim = 8;
  spec.fingerprint = hash_of(0x11);
  return spec;
}

RankStoreOptions options(const std::filesystem::path& directory = {}) {
  RankStoreOptions options;
  options.directory = directory;
  options.host_budget_bytes = 1U << 20;
  options.disk_budget_bytes = 1U << 26;
  options.spec = model();
  options.codec = KvCodec::kF32;
  options.max_positions = 64;
  return options;
}

std::unique_ptr<RankStore> open(const RankStoreOptions& options) {
  auto store = RankStore::open(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? std::move(*store) : nullptr;
}

/// K and V rows of a model's cache, [layer][row][head][element].
struct Rows {
  explicit Rows(std::size_t n_rows, const KvShape& of = model().shape, float first = 0)
      : shape(of),
        rows(n_rows),
        k(of.n_layers * n_rows * of.k_elements()),
        v(of.n_layers * n_rows * of.v_elements()) {
    for (std::size_t i = 0; first != 0 && i < k.size(); ++i) {
      k[i] = first + 0.01F * static_cast<float>(i);
    }
    for (std::size_t i = 0; first != 0 && i < v.size(); ++i) {
      v[i] = -first - 0.01F * static_cast<float>(i);
    }
  }
  [[nodiscard]] CacheLayout layout() { return make<std::byte>(k.data(), v.data()); }
  [[nodiscard]] ConstCacheLayout const_layout() const {
    return make<const std::byte>(k.data(), v.data());
  }
  template <typename Byte, typename Float>
  BasicCacheLayout<Byte> make(Float* k_data, Float* v_data) const {
    BasicCacheLayout<Byte> cache;
    cache.dtype = KvCodec::kF32;
    cache.shape = shape;
    cache.n_rows = rows;
    cache.k_strides.head = shape.head_dim_k * 4;
    cache.v_strides.head = shape.head_dim_v * 4;
    cache.k_strides.row = shape.k_elements() * 4;
    cache.v_strides.row = shape.v_elements() * 4;
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
      cache.k.push_back(reinterpret_cast<Byte*>(k_data + layer * rows * shape.k_elements()));
      cache.v.push_back(reinterpret_cast<Byte*>(v_data + layer * rows * shape.v_elements()));
    }
    return cache;
  }
  KvShape shape;
  std::size_t rows;
  std::vector<float> k, v;
};

CaptureMeta meta_of(std::uint32_t number) {
  return {key_of(number), hash_of(0x33), hash_of(0x22), ContextKind::kWindow, 7};
}

std::vector<TokenId> tokens_of(std::uint32_t number) {
  return {static_cast<TokenId>(number), 5, 6};
}

LoadItem item_of(std::uint32_t number, std::uint32_t first_position) {
  return {key_of(number), hash_of(0x33), hash_of(0x22), tokens_of(number), first_position};
}

Status capture(RankStore& store, std::uint32_t number, const Rows& rows,
               std::uint32_t first_position = 10) {
  return store.capture(meta_of(number), tokens_of(number), first_position, rows.const_layout());
}

Status compose(RankStore& store, const std::vector<LoadItem>& items, Rows& out) {
  const PreparedLoad load = store.prepare(items);
  const PreparedLoad* const loads[] = {&load};
  return store.compose(loads, out.layout());
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::fabs(a[i] - b[i]));
  }
  return largest;
}

TEST(RankStore, GivesBackWhatWasCaptured) {
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

TEST(RankStore, LoadsFollowEachOtherInTheRows) {
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
  ASSERT_TRUE(store->compose(both, out.layout()).ok());
  const std::size_t row = model().shape.v_elements();
  for (std::size_t i = 0; i < 3 * row; ++i) {
    EXPECT_EQ(out.v[i], b.v[i]);
    EXPECT_EQ(out.v[3 * row + i], a.v[i]);
    EXPECT_EQ(out.v[6 * row + i], b.v[i]);
  }
}

TEST(RankStore, ARequestThatDoesNotMatchGetsNothing) {
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
    EXPECT_EQ(store->compose(loads, out.layout()).ok(), load.status().ok());
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

TEST(RankStore, RowsThatDoNotFitAreRefused) {
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

TEST(RankStore, OptionsAreChecked) {
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
  EXPECT_EQ(code([](auto& o) { o.shard_count = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.shard_index = 1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.shard_count = 3; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.host_budget_bytes = 0; }), StatusCode::kInvalidArgument);
}

TEST(RankStore, ARankHoldsItsShareOfTheHeads) {
  for (const auto& [shards, heads] : {std::pair{1U, 4U}, {2U, 2U}, {4U, 1U}, {8U, 1U}}) {
    RankStoreOptions sharded = options();
    sharded.shard_count = shards;
    sharded.shard_index = shards - 1;
    EXPECT_EQ(open(sharded)->shape().n_kv_heads, heads);
  }
}

TEST(RankStore, RecordsOfAnotherShardOrModelAreNotServed) {
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
    EXPECT_EQ(code(*store), StatusCode::kInvalidArgument);
  }
}

TEST(RankStore, ARestartFindsTheRecords) {
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

TEST(RankStore, DamagedRecordsAreNamedAndDropped) {
  const TempDirectory directory;
  ASSERT_TRUE(capture(*open(options(directory.path())), 1, Rows(3, model().shape, 1)).ok());
  for (const auto& path : files_below(directory.path() / "kv")) {
    std::vector<std::byte> bytes = read_bytes(path);
    if (bytes.size() > 700) {  // in the middle of the record's values
      bytes[600] ^= std::byte{1};
      write_bytes(path, bytes);
    }
  }
  const auto store = open(options(directory.path()));
  ASSERT_TRUE(store->contains(key_of(1)));
  const LoadItem item = item_of(1, 10);
  const PreparedLoad load = store->prepare(std::span(&item, 1));
  EXPECT_EQ(load.status().code(), StatusCode::kDataLoss) << load.status().to_string();
  EXPECT_EQ(load.failed_key(), key_of(1));
  EXPECT_FALSE(store->contains(key_of(1)));
  EXPECT_TRUE(store->verify()->corrupt.empty());
}

TEST(RankStore, ALoadOutlivesAnEraseAndTheStore) {
  auto store = open(options());
  const Rows rows(3, model().shape, 1);
  ASSERT_TRUE(capture(*store, 1, rows).ok());
  const LoadItem item = item_of(1, 10);
  const PreparedLoad load = store->prepare(std::span(&item, 1));
  const Result<EraseCounts> counts = store->erase_scope(hash_of(0x33));
  EXPECT_EQ(counts->host, 1U);
  EXPECT_EQ(counts->leased, 1U);
  EXPECT_EQ(store->prepare(std::span(&item, 1)).status().code(), StatusCode::kNotFound);
  store->close();
  Rows out(3);
  const PreparedLoad* const loads[] = {&load};
  EXPECT_TRUE(store->compose(loads, out.layout()).ok());
  EXPECT_EQ(out.v, rows.v);
}

TEST(RankStore, AClosedStoreSaysSo) {
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
