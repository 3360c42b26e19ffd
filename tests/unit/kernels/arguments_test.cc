#include <gmock/gmock.h>

#include <limits>

#include "inferscale/kv_kernels.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/test_cache.h"

namespace inferscale::kernels {
namespace {

using ::testing::HasSubstr;

constexpr KvShape kShape{2, 3, 16, 12};
constexpr std::uint32_t kPositions = 64;
constexpr std::size_t kRows = 10;
constexpr std::uint32_t kTokens = 4;

// A valid call of each kernel; every test breaks one thing in it.
class ArgumentsTest : public ::testing::Test {
 protected:
  ArgumentsTest()
      : spec(specs_of_every_scaling(RopePairing::kHalves, 16)[0]),
        table(table_of(spec, kPositions)),
        cache(kShape, KvCodec::kF16, kRows),
        layout(cache.layout()),
        const_layout(cache.const_layout()),
        good(random_record(meta_of(kShape, KvCodec::kF16), kTokens, 1)),
        item{good.get(), 5, 0, {}} {}

  // Both kernels refuse and name `what`; compose leaves every byte as it was, even though the item
  // before the bad one is good.
  void expect_refused(const std::string& what) {
    expect_compose_refused(what);
    auto builder =
        RecordBuilder::create(meta_of(kShape, KvCodec::kF16), std::vector<TokenId>(kTokens, 1));
    ASSERT_TRUE(builder.ok());
    const CaptureSource source{item.first_position, item.first_row, item.rows};
    const Status status = kv_capture(const_layout, source, *table, *builder);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(what));
    EXPECT_THAT(status.message(), HasSubstr("kv_capture"));
  }

  void expect_compose_refused(const std::string& what) {
    const ComposeItem items[] = {{good.get(), 1, 0, {}}, item};
    const Status status = kv_compose(items, *table, layout);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(what));
    EXPECT_THAT(status.message(), HasSubstr("kv_compose"));
    EXPECT_TRUE(cache.intact_except({}));
  }

  // The same change in the layouts of both kernels.
  template <typename Change>
  void change_layout(Change change) {
    change(layout);
    change(const_layout);
  }

  RopeSpec spec;
  std::shared_ptr<const RopeTable> table;
  TestCache cache;
  CacheLayout layout;
  ConstCacheLayout const_layout;
  std::shared_ptr<const Record> good;
  ComposeItem item;
};

TEST_F(ArgumentsTest, TheUnchangedCallIsAccepted) {
  const ComposeItem items[] = {item};
  EXPECT_TRUE(kv_compose(items, *table, layout).ok());
}

TEST_F(ArgumentsTest, UnknownDtype) {
  change_layout([](auto& l) { l.dtype = static_cast<KvCodec>(9); });
  expect_refused("cache.dtype is 9");
}

TEST_F(ArgumentsTest, InvalidShape) {
  change_layout([](auto& l) { l.shape.n_layers = 0; });
  expect_refused("cache.shape");
}

TEST_F(ArgumentsTest, PointersPerLayer) {
  change_layout([](auto& l) { l.k.pop_back(); });
  expect_refused("cache.k has 1 pointers; the shape has 2 layers");
  change_layout([](auto& l) { l.k.push_back(l.k[0]); });
  change_layout([](auto& l) { l.v.push_back(l.v[0]); });
  expect_refused("cache.v has 3 pointers");
  change_layout([](auto& l) { l.v.pop_back(); });
  change_layout([](auto& l) { l.v[1] = nullptr; });
  expect_refused("cache.v[1] is null");
}

TEST_F(ArgumentsTest, StridesThatOverlap) {
  const auto original = layout;
  change_layout([](auto& l) { l.k_strides.head -= 1; });
  expect_refused(
      "cache.k_strides.head is 31 bytes, which makes cells overlap: at least 32 are needed");
  change_layout([&](auto& l) { l.k_strides.head = original.k_strides.head; });
  change_layout([](auto& l) { l.k_strides.row -= 2; });
  expect_refused("cache.k_strides.row is 94 bytes, which makes cells overlap: at least 96");
  change_layout([&](auto& l) { l.k_strides.row = 8; });
  expect_refused("cache.k_strides.row is 8 bytes");
  change_layout([&](auto& l) { l.k_strides.row = original.k_strides.row; });
  change_layout([](auto& l) { l.v_strides.row = 0; });
  expect_refused("cache.v_strides.row is 0 bytes");
  change_layout([&](auto& l) { l.v_strides.row = original.v_strides.row; });
  change_layout([](auto& l) { l.v_strides.head = 25; });
  expect_refused("cache.v_strides.row is 72 bytes, which makes cells overlap: at least 74");
}

// Blocks of 5 rows, laid out [block][row][head][dim].
TEST_F(ArgumentsTest, Blocks) {
  change_layout([](auto& l) {
    l.rows_per_block = 5;
    l.k_strides.block = 5 * l.k_strides.row;
    l.v_strides.block = 5 * l.v_strides.row;
  });
  const auto original = layout;
  change_layout([](auto& l) { l.k_strides.block -= 1; });
  expect_refused("cache.k_strides.block is 479 bytes, which makes cells overlap: at least 480");
  change_layout([&](auto& l) { l.k_strides.block = original.k_strides.block; });
  change_layout([](auto& l) { l.v_strides.block = 0; });
  expect_refused("cache.v_strides.block is 0 bytes");
  change_layout([](auto& l) { l.v_strides.block = std::numeric_limits<std::size_t>::max() - 1; });
  expect_refused("cache.v_strides.block is 18446744073709551614 bytes; 2 of them reach beyond");
  change_layout([&](auto& l) { l.v_strides.block = original.v_strides.block; });
  change_layout([](auto& l) { l.rows_per_block = 3; });
  expect_refused("cache.n_rows is 10; it must be a multiple of rows_per_block, 3");
  change_layout([](auto& l) { l.rows_per_block = 20; });
  expect_refused("cache.n_rows is 10; it must be a multiple of rows_per_block, 20");
  TestCache other(kShape, KvCodec::kF16, kRows);
  CacheLayout good_layout = original;
  good_layout.k = other.layout().k;
  good_layout.v = other.layout().v;
  const ComposeItem items[] = {item};
  const Status status = kv_compose(items, *table, good_layout);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_F(ArgumentsTest, ElementStrides) {
  change_layout([](auto& l) { l.k_strides.element = 1; });
  expect_refused("cache.k_strides.element is 1 bytes, which makes cells overlap: at least 2");
  change_layout([](auto& l) { l.k_strides.element = 20 * 2; });
  expect_refused("cache.k_strides.element is 40 bytes, which makes cells overlap");
  change_layout([](auto& l) { l.k_strides = {2, 16 * 20, 20, 0}; });
  const ComposeItem items[] = {item};
  EXPECT_TRUE(kv_compose(items, *table, layout).ok());
}

TEST_F(ArgumentsTest, StridesBeyondTheAddressSpace) {
  const std::size_t huge = std::numeric_limits<std::size_t>::max();
  const auto original = layout;
  change_layout([&](auto& l) { l.k_strides.row = huge / 4; });
  expect_refused("beyond the address space");
  change_layout([&](auto& l) { l.k_strides.row = original.k_strides.row; });
  change_layout([&](auto& l) { l.v_strides.head = huge - 8; });
  expect_refused("beyond the address space");
  change_layout([&](auto& l) { l.v_strides.head = original.v_strides.head; });
  change_layout([&](auto& l) { l.n_rows = huge; });
  expect_refused("beyond the address space");
}

TEST_F(ArgumentsTest, RotaryDimBeyondTheHead) {
  table = table_of(specs_of_every_scaling(RopePairing::kHalves, 18)[0], kPositions);
  expect_refused("rotary_dim of the table is 18; the cache's head_dim_k allows 0..16");
}

TEST_F(ArgumentsTest, KeyBiasOfAnotherShape) {
  const std::size_t elements = kShape.n_layers * kShape.k_elements();
  for (const std::size_t size : {elements - 1, elements + 1, elements / kShape.n_layers}) {
    table = *RopeTable::build(spec, kPositions, std::vector<float>(size));
    expect_refused("key_bias of the table has " + std::to_string(size) + " elements");
  }
  table = *RopeTable::build(spec, kPositions, std::vector<float>(elements));
  const ComposeItem items[] = {item};
  EXPECT_TRUE(kv_compose(items, *table, layout).ok());
}

TEST_F(ArgumentsTest, Positions) {
  item.first_position = kPositions - kTokens;
  const ComposeItem last[] = {item};
  TestCache other(kShape, KvCodec::kF16, kRows);
  EXPECT_TRUE(kv_compose(last, *table, other.layout()).ok());
  item.first_position += 1;
  expect_refused("positions 61..64; the table covers 0..63");
  item.first_position = std::numeric_limits<std::uint32_t>::max();
  expect_refused("the table covers 0..63");
}

TEST_F(ArgumentsTest, ConsecutiveRows) {
  item.first_row = kRows - kTokens + 1;
  expect_refused("first_row is 7 for 4 tokens; the cache has 10 rows");
  item.first_row = std::numeric_limits<std::size_t>::max();
  expect_refused("first_row is");
  item.first_row = 0;
  change_layout([](auto& l) { l.n_rows = 0; });
  expect_refused("the cache has 0 rows");
}

TEST_F(ArgumentsTest, ListedRows) {
  const std::uint32_t rows[] = {0, 9, 10, 1};
  item.rows = rows;
  expect_refused("rows[2] is 10; the cache has 10 rows");
  item.rows = std::span(rows, 2);
  expect_refused("rows has 2 entries; it must be empty or have one per token: 4");
}

TEST_F(ArgumentsTest, PartsOfARecord) {
  item.first_token = 4;
  expect_compose_refused("items[1] begins at token 4 and has 0; its record has 4 tokens");
  item.first_token = 2;
  item.n_tokens = 3;
  expect_compose_refused("items[1] begins at token 2 and has 3; its record has 4 tokens");
  item.n_tokens = std::numeric_limits<std::uint32_t>::max();
  expect_compose_refused("items[1] begins at token 2");
  const std::uint32_t rows[] = {0, 9, 8, 1};
  item.n_tokens = 2;
  item.rows = rows;
  expect_compose_refused("one per token: 2");
}

TEST_F(ArgumentsTest, Layers) {
  const ComposeItem items[] = {item};
  auto builder =
      RecordBuilder::create(meta_of(kShape, KvCodec::kF16), std::vector<TokenId>(kTokens, 1));
  ASSERT_TRUE(builder.ok());
  for (const LayerRange layers : {LayerRange{2, 0}, LayerRange{0, 3}, LayerRange{1, 2},
                                  LayerRange{1, std::numeric_limits<std::uint32_t>::max()}}) {
    EXPECT_EQ(kv_compose(items, *table, layout, layers).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(kv_capture(const_layout, {}, *table, *builder, layers).code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(cache.intact_except({}));
}

TEST_F(ArgumentsTest, NullRecord) {
  item.record = nullptr;
  expect_compose_refused("items[1].record is null");
}

TEST_F(ArgumentsTest, DescriptionOfARecord) {
  const auto described = Record::describe(item.record->meta(), item.record->token_ids());
  ASSERT_TRUE(described.ok());
  item.record = described->get();
  expect_compose_refused("items[1].record is a description");
}

TEST_F(ArgumentsTest, ShapeOfTheRecord) {
  for (const KvShape shape : {KvShape{3, 3, 16, 12}, KvShape{2, 2, 16, 12}, KvShape{2, 3, 18, 12},
                              KvShape{2, 3, 16, 14}}) {
    const auto other = random_record(meta_of(shape, KvCodec::kF16), kTokens, 2);
    item.record = other.get();
    expect_compose_refused("items[1].record has shape");
    auto builder =
        RecordBuilder::create(meta_of(shape, KvCodec::kF16), std::vector<TokenId>(kTokens, 1));
    ASSERT_TRUE(builder.ok());
    const Status status = kv_capture(const_layout, {}, *table, *builder);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("builder has shape"));
  }
}

// One head or one row makes its stride meaningless, so any value passes.
TEST_F(ArgumentsTest, UnusedStridesAreNotChecked) {
  const KvShape shape{1, 1, 16, 12};
  const auto record = random_record(meta_of(shape, KvCodec::kF16), 1, 3);
  TestCache one(shape, KvCodec::kF16, 1);
  CacheLayout free_strides = one.layout();
  free_strides.k_strides.head = free_strides.v_strides.head = 0;
  free_strides.k_strides.row = free_strides.v_strides.row = 1;
  free_strides.rows_per_block = 1;
  const ComposeItem items[] = {{record.get(), 0, 0, {}}};
  const Status status = kv_compose(items, *table, free_strides);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

}  // namespace
}  // namespace inferscale::kernels
