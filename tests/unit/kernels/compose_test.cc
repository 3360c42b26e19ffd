#include <algorithm>
#include <numeric>

#include "inferscale/kv_kernels.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/targets.h"
#include "unit/kernels/test_cache.h"

namespace inferscale::kernels {
namespace {

class ComposeTest : public TargetTest {};
INFERSCALE_ON_EVERY_TARGET(ComposeTest);

constexpr std::uint32_t kPositions = 2048;

std::uint32_t count_of(const ComposeItem& item) {
  return item.n_tokens != 0 ? item.n_tokens : item.record->n_tokens() - item.first_token;
}

std::vector<std::uint32_t> rows_of(const ComposeItem& item) {
  if (!item.rows.empty()) {
    return {item.rows.begin(), item.rows.end()};
  }
  std::vector<std::uint32_t> rows(count_of(item));
  std::iota(rows.begin(), rows.end(), static_cast<std::uint32_t>(item.first_row));
  return rows;
}

// Every key and value of `item` against the reference.
void expect_composed(const ComposeItem& item, const RopeSpec& spec, const TestCache& cache) {
  const Record& record = *item.record;
  const KvShape& shape = record.meta().shape;
  const std::vector<std::uint32_t> rows = rows_of(item);
  for (std::uint32_t t = 0; t < count_of(item); ++t) {
    const std::uint32_t token = item.first_token + t;
    const ReferenceRotation rotation(spec, Turn::kForward, item.first_position + t);
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
      for (std::uint32_t head = 0; head < shape.n_kv_heads; ++head) {
        ASSERT_TRUE(rotation.turns(shape.head_dim_k,
                                   packed_head(record, layer, KvPart::kK, token, head),
                                   cache.k(layer, rows[t], head)))
            << "layer " << layer << " token " << t << " head " << head;
        ASSERT_TRUE(is_converted(shape.head_dim_v,
                                 packed_head(record, layer, KvPart::kV, token, head),
                                 cache.v(layer, rows[t], head)))
            << "value, layer " << layer << " token " << t << " head " << head;
      }
    }
  }
}

struct Case {
  KvShape shape;
  std::uint32_t rotary_dim = 0;
};

// Models' shapes, then odd ones whose heads end in the middle of every vector width.
std::vector<Case> cases() {
  return {{{2, 3, 64, 64}, 64},    {{1, 8, 128, 128}, 128}, {{2, 2, 96, 96}, 96},
          {{1, 1, 256, 256}, 256}, {{1, 64, 64, 64}, 64},   {{2, 5, 80, 48}, 20},
          {{1, 2, 34, 30}, 34},    {{1, 1, 2, 1}, 2},       {{2, 3, 6, 7}, 4},
          {{1, 4, 64, 64}, 32},    {{1, 2, 130, 129}, 126}, {{3, 1, 1024, 1}, 1024}};
}

constexpr KvCodec kDtypes[] = {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16};
constexpr KvCodec kCodecs[] = {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16, KvCodec::kQ8,
                               KvCodec::kFp8E4m3};

// Two items of one token and of seven, at positions 1 and up to the table's last.
void compose_and_check(const Case& c, const RopeSpec& spec, KvCodec codec, KvCodec dtype) {
  SCOPED_TRACE(describe(c.shape) + ", " + describe(spec) + ", codec " +
               std::to_string(static_cast<int>(codec)) + " to " +
               std::to_string(static_cast<int>(dtype)));
  const auto table = table_of(spec, kPositions);
  const auto one = random_record(meta_of(c.shape, codec), 1, 11);
  const auto seven = random_record(meta_of(c.shape, codec), 7, 12);
  ASSERT_NE(one, nullptr);
  ASSERT_NE(seven, nullptr);
  TestCache cache(c.shape, dtype, 10);
  const ComposeItem items[] = {{one.get(), 1, 9, {}}, {seven.get(), kPositions - 7, 1, {}}};
  const Status status = kv_compose(items, *table, cache.layout());
  ASSERT_TRUE(status.ok()) << status.to_string();
  expect_composed(items[0], spec, cache);
  expect_composed(items[1], spec, cache);
  const std::uint32_t written[] = {1, 2, 3, 4, 5, 6, 7, 9};
  EXPECT_TRUE(cache.intact_except(written));
}

TEST_P(ComposeTest, MatchesTheReference) {
  for (const Case& c : cases()) {
    for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalves}) {
      const std::vector<RopeSpec> specs = specs_of_every_scaling(pairing, c.rotary_dim);
      for (const RopeSpec& spec : specs) {
        for (const KvCodec codec : kCodecs) {
          for (const KvCodec dtype : kDtypes) {
            const bool plain = codec != KvCodec::kBf16 && dtype != KvCodec::kBf16;
            if ((!plain || codec_is_scaled(codec)) && &spec != &specs.back()) {
              continue;  // one scaling does for these pairs
            }
            compose_and_check(c, spec, codec, dtype);
            if (HasFatalFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

TEST_P(ComposeTest, EveryArrangementAndScatteredRows) {
  const KvShape shape{2, 3, 20, 18};
  const std::uint32_t scattered[] = {7, 0, 11, 3, 10};
  for (const Arrangement arrangement : kArrangements) {
    for (const KvCodec codec : kCodecs) {
      for (const KvCodec dtype : kDtypes) {
        SCOPED_TRACE(describe(arrangement));
        const RopeSpec spec = specs_of_every_scaling(RopePairing::kHalves, 12)[3];
        const auto record = random_record(meta_of(shape, codec), 5, 21);
        TestCache cache(shape, dtype, 12, arrangement);
        const ComposeItem items[] = {{record.get(), 100, 0, scattered}};
        ASSERT_TRUE(kv_compose(items, *table_of(spec, kPositions), cache.layout()).ok());
        expect_composed(items[0], spec, cache);
        EXPECT_TRUE(cache.intact_except(scattered));

        TestCache straight(shape, dtype, 12, arrangement);
        const ComposeItem in_order[] = {{record.get(), 100, 7, {}}};
        ASSERT_TRUE(kv_compose(in_order, *table_of(spec, kPositions), straight.layout()).ok());
        expect_composed(in_order[0], spec, straight);
        EXPECT_TRUE(straight.intact_except(rows_of(in_order[0])));
      }
    }
  }
}

struct BlockCase {
  KvShape shape;
  std::uint32_t rotary_dim = 0;
  std::size_t block = 0;
};

// Records of many lengths one behind another, from a row in the middle of a block on, with a gap:
// tiles then begin and end anywhere in records and in blocks.
void compose_chain(const BlockCase& c, RopePairing pairing, KvCodec codec, KvCodec dtype,
                   Arrangement arrangement) {
  SCOPED_TRACE(describe(c.shape) + ", " + describe(arrangement) + " of " + std::to_string(c.block));
  const RopeSpec spec = specs_of_every_scaling(pairing, c.rotary_dim)[3];
  std::vector<std::shared_ptr<const Record>> records;
  std::vector<ComposeItem> items;
  std::vector<std::uint32_t> written;
  std::uint32_t row = 5;
  for (const std::uint32_t n_tokens : {1U, 28U, 3U, 64U, 8U, 70U, 9U}) {
    records.push_back(random_record(meta_of(c.shape, codec), n_tokens, 61 + n_tokens));
    ComposeItem item{records.back().get(), 7 + row, row, {}};
    if (n_tokens == 28) {  // not its first three tokens, nor its last two
      item.first_token = 3;
      item.n_tokens = 23;
    }
    for (std::uint32_t t = 0; t < count_of(item); ++t) {
      written.push_back(row++);
    }
    row += n_tokens == 8 ? 2 : 0;
    items.push_back(item);
  }
  TestCache cache(c.shape, dtype, 256, arrangement, c.block);
  const Status status = kv_compose(items, *table_of(spec, kPositions), cache.layout());
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (const ComposeItem& item : items) {
    expect_composed(item, spec, cache);
  }
  EXPECT_TRUE(cache.intact_except(written));
}

TEST_P(ComposeTest, ChainsOfRecordsInBlocks) {
  const BlockCase block_cases[] = {{{2, 3, 64, 64}, 64, 16},
                                   {{1, 2, 64, 64}, 32, 32},
                                   {{1, 2, 20, 18}, 12, 128},
                                   {{1, 1, 128, 128}, 128, 32}};
  for (const BlockCase& c : block_cases) {
    for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalves}) {
      for (const KvCodec codec : kCodecs) {
        for (const KvCodec dtype : kDtypes) {
          compose_chain(c, pairing, codec, dtype, Arrangement::kCpuBlocks);
          if (HasFatalFailure()) {
            return;
          }
        }
        const KvCodec dtype = codec_is_scaled(codec) ? KvCodec::kF16 : codec;
        compose_chain(c, pairing, codec, dtype, Arrangement::kTransposedBlocks);
        compose_chain(c, pairing, codec, dtype, Arrangement::kElementMajor);
        compose_chain(c, pairing, codec, dtype, Arrangement::kPairedBlocks);
      }
    }
  }
}

// What threads do that share the layers among them.
TEST_P(ComposeTest, PartsOfTheLayersMakeTheWhole) {
  const KvShape shape{5, 2, 64, 64};
  const RopeSpec spec = specs_of_every_scaling(RopePairing::kHalves, 64)[0];
  const auto record = random_record(meta_of(shape, KvCodec::kBf16), 40, 71);
  TestCache cache(shape, KvCodec::kBf16, 64, Arrangement::kCpuBlocks, 32);
  const ComposeItem items[] = {{record.get(), 9, 11, {}}};
  for (const LayerRange layers : {LayerRange{3, 0}, LayerRange{0, 1}, LayerRange{1, 2}}) {
    ASSERT_TRUE(kv_compose(items, *table_of(spec, kPositions), cache.layout(), layers).ok());
  }
  expect_composed(items[0], spec, cache);
  EXPECT_TRUE(cache.intact_except(rows_of(items[0])));

  TestCache one(shape, KvCodec::kBf16, 64, Arrangement::kCpuBlocks, 32);
  const TestCache untouched(shape, KvCodec::kBf16, 64, Arrangement::kCpuBlocks, 32);
  ASSERT_TRUE(kv_compose(items, *table_of(spec, kPositions), one.layout(), {2, 1}).ok());
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    const bool same = bool(is_converted(64, untouched.k(layer, 11, 1), one.k(layer, 11, 1))) &&
                      bool(is_converted(64, untouched.v(layer, 11, 1), one.v(layer, 11, 1)));
    EXPECT_EQ(same, layer != 2) << layer;
  }
}

// Longer than any tile of coefficients, so that several are used for one item.
TEST_P(ComposeTest, LongRecords) {
  const KvShape shape{1, 1, 64, 8};
  for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalves}) {
    const RopeSpec spec = specs_of_every_scaling(pairing, 64)[2];
    const auto record = random_record(meta_of(shape, KvCodec::kF16), 1001, 31);
    TestCache cache(shape, KvCodec::kF16, 1001);
    std::vector<std::uint32_t> reversed(1001);
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    const ComposeItem straight[] = {{record.get(), 13, 0, {}}};
    ASSERT_TRUE(kv_compose(straight, *table_of(spec, kPositions), cache.layout()).ok());
    expect_composed(straight[0], spec, cache);
    const ComposeItem backwards[] = {{record.get(), 1000, 0, reversed}};
    ASSERT_TRUE(kv_compose(backwards, *table_of(spec, kPositions), cache.layout()).ok());
    expect_composed(backwards[0], spec, cache);
  }
}

TEST_P(ComposeTest, PositionZeroKeepsKeysWithoutMscale) {
  const KvShape shape{1, 2, 64, 64};
  const RopeSpec spec = specs_of_every_scaling(RopePairing::kAdjacent, 64)[0];
  const auto record = random_record(meta_of(shape, KvCodec::kF16), 1, 41);
  TestCache cache(shape, KvCodec::kF16, 1);
  const ComposeItem items[] = {{record.get(), 0, 0, {}}};
  ASSERT_TRUE(kv_compose(items, *table_of(spec, kPositions), cache.layout()).ok());
  const Head key = cache.k(0, 0, 0);
  EXPECT_TRUE(is_converted(2 * 64, {KvCodec::kF16, record->layer_k(0)}, key));
}

TEST_P(ComposeTest, NoItemsWriteNothing) {
  const KvShape shape{1, 1, 8, 8};
  TestCache cache(shape, KvCodec::kF16, 2);
  const RopeSpec spec = specs_of_every_scaling(RopePairing::kHalves, 8)[0];
  EXPECT_TRUE(kv_compose({}, *table_of(spec, kPositions), cache.layout()).ok());
  EXPECT_TRUE(cache.intact_except({}));
}

}  // namespace
}  // namespace inferscale::kernels
