// Records that go straight into an engine's cache in memory of the host, and come from it.
#include <gtest/gtest.h>

#include <vector>

#include "connector/rank_store.h"
#include "unit/connector/rank_fixture.h"

namespace inferscale::testing {
namespace {

class RankStorePlace : public RankStoreTest {};
INSTANTIATE_TEST_SUITE_P(OnHost, RankStorePlace, ::testing::Values(false));

// Tokens of two loads in rows of a larger cache, some of them only: as when a request has the first
// ones already.
TEST_P(RankStorePlace, PlacesTokensByTheirPositions) {
  for (const unsigned threads : {1U, 3U}) {
    RankStoreOptions wide = options();
    wide.threads = threads;
    wide.spec.shape = {4, kHeads, 64, 64};  // large enough for several threads
    wide.spec.rope.rotary_dim = 64;
    wide.max_positions = 512;
    wide.host_budget_bytes = 1U << 26;
    const auto store = open(wide);
    const Rows a(300, wide.spec.shape, 1), b(20, wide.spec.shape, 2);
    std::vector<TokenId> long_tokens(300, 7), short_tokens(20, 8);
    ASSERT_TRUE(store->capture(meta_of(1), long_tokens, 10, a.const_layout()).ok());
    ASSERT_TRUE(store->capture(meta_of(2), short_tokens, 310, b.const_layout()).ok());
    const LoadItem items[] = {{key_of(1), hash_of(0x33), hash_of(0x22), long_tokens, 10},
                              {key_of(2), hash_of(0x33), hash_of(0x22), short_tokens, 310}};
    const PreparedLoad load = store->prepare(items);
    std::vector<std::uint32_t> slots;
    for (std::uint32_t i = 0; i < 305; ++i) {
      slots.push_back(399 - i);
    }
    Rows out(400, wide.spec.shape);
    const Placement placement{&load, 15, slots};
    const Status status = store->place(std::span(&placement, 1), out.layout());
    ASSERT_TRUE(status.ok()) << status.to_string();
    const std::size_t width = wide.spec.shape.v_elements();
    for (std::uint32_t layer = 0; layer < 4; ++layer) {
      const float* got = out.v.data() + layer * 400 * width;
      const float* from_a = a.v.data() + layer * 300 * width;
      const float* from_b = b.v.data() + layer * 20 * width;
      EXPECT_EQ(got[399 * width], from_a[5 * width]);
      EXPECT_EQ(got[(399 - 294) * width], from_a[299 * width]);
      EXPECT_EQ(got[(399 - 295) * width], from_b[0]);
      EXPECT_EQ(got[95 * width + 1], from_b[9 * width + 1]);
      EXPECT_EQ(got[94 * width], 0) << "not asked for";
      const float* key = out.k.data() + (layer * 400 + 399) * width;
      EXPECT_NEAR(key[3], a.k[(layer * 300 + 5) * width + 3], 1e-2);
    }

    // And back again, from the same rows.
    ASSERT_TRUE(
        store->capture_rows(meta_of(3), std::vector<TokenId>(305, 9), 15, out.const_layout(), slots)
            .ok());
    Rows again(305, wide.spec.shape);
    const LoadItem third[] = {
        {key_of(3), hash_of(0x33), hash_of(0x22), std::vector<TokenId>(305, 9), 15}};
    const PreparedLoad captured = store->prepare(third);
    const PreparedLoad* const loads[] = {&captured};
    ASSERT_TRUE(store->compose(loads, again.layout()).ok());
    EXPECT_EQ(again.v[0], a.v[5 * width]);
    EXPECT_EQ(again.v[304 * width], b.v[9 * width]);
  }
}

TEST_P(RankStorePlace, PlacesNothingThatItDoesNotHave) {
  const auto store = open(options());
  const Rows rows(3, model().shape, 1);
  ASSERT_TRUE(capture(*store, 1, rows).ok());
  ASSERT_TRUE(capture(*store, 2, rows).ok());
  const LoadItem chain[] = {item_of(1, 10), item_of(2, 13)};
  const LoadItem gap[] = {item_of(1, 10), item_of(2, 14)};
  const PreparedLoad good = store->prepare(chain);
  const PreparedLoad torn = store->prepare(gap);
  const PreparedLoad absent = store->prepare(std::vector<LoadItem>{item_of(9, 0)});
  const std::uint32_t slots[] = {0, 1, 2, 3, 4, 5, 6};
  const std::uint32_t beyond[] = {0, 100};
  Rows out(8);
  const Placement wrong[] = {{&good, 9, std::span(slots, 2)},
                             {&good, 15, std::span(slots, 2)},
                             {&good, 10, slots},
                             {&torn, 10, std::span(slots, 2)},
                             {&good, 10, beyond},
                             {&absent, 0, {}},
                             {&good, 16, std::span(slots, 1)}};
  for (const Placement& placement : wrong) {
    const Placement both[] = {{&good, 10, std::span(slots, 6)}, placement};
    EXPECT_FALSE(store->place(both, out.layout()).ok());
    EXPECT_EQ(out.v, std::vector<float>(out.v.size()));
  }
  const std::vector<TokenId> tokens = tokens_of(3);
  EXPECT_EQ(store->capture_rows(meta_of(3), tokens, 0, rows.const_layout(), {}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      store->capture_rows(meta_of(3), tokens, 0, rows.const_layout(), std::span(slots, 2)).code(),
      StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::testing
