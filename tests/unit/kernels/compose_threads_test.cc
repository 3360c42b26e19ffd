#include <cstring>
#include <thread>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/test_cache.h"

// A binary of its own, so that ThreadSanitizer runs it without the tests of the arithmetic.
namespace inferscale::kernels {
namespace {

TEST(ComposeThreadsTest, ThreadsMayShareACache) {
  const KvShape shape{3, 2, 64, 64};
  const RopeSpec spec = specs_of_every_scaling(RopePairing::kAdjacent, 64)[0];
  const auto table = table_of(spec, 512);
  const auto record = random_record(meta_of(shape, KvCodec::kF16), 20, 51);
  TestCache shared(shape, KvCodec::kF16, 80);
  TestCache alone(shape, KvCodec::kF16, 80);
  const CacheLayout layout = shared.layout();
  std::vector<ComposeItem> items;
  for (std::uint32_t i = 0; i < 4; ++i) {
    items.push_back({record.get(), 1 + 100 * i, 20 * i, {}});
  }
  std::vector<std::thread> threads;
  std::vector<Status> statuses(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    threads.emplace_back(
        [&, i] { statuses[i] = kv_compose(std::span(&items[i], 1), *table, layout); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Status& status : statuses) {
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  ASSERT_TRUE(kv_compose(items, *table, alone.layout()).ok());
  const std::size_t bytes = 64 * codec_element_bytes(KvCodec::kF16);
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (std::uint32_t row = 0; row < 80; ++row) {
      for (std::uint32_t head = 0; head < shape.n_kv_heads; ++head) {
        EXPECT_EQ(
            std::memcmp(shared.k(layer, row, head).at(0), alone.k(layer, row, head).at(0), bytes),
            0);
        EXPECT_EQ(
            std::memcmp(shared.v(layer, row, head).at(0), alone.v(layer, row, head).at(0), bytes),
            0);
      }
    }
  }
}

}  // namespace
}  // namespace inferscale::kernels
