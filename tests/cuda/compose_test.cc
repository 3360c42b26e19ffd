#include <algorithm>
#include <numeric>

#include "cuda/move_rig.h"
#include "unit/kernels/reference.h"

namespace inferscale::cuda {
namespace {

constexpr KvCodec kDtypes[] = {KvCodec::kF16, KvCodec::kBf16, KvCodec::kF32};
constexpr KvCodec kCodecs[] = {KvCodec::kF16, KvCodec::kBf16, KvCodec::kF32, KvCodec::kQ8,
                               KvCodec::kFp8E4m3};

PageLayout pages_of(const MoveCase& c, KvCodec codec, std::uint32_t tokens_per_page = 4) {
  return {c.shape, codec, tokens_per_page};
}

// A whole record, one in part from the middle of a page, one of a single token, and nothing.
struct Scene {
  explicit Scene(std::uint32_t scale = 1) : tokens{7 * scale, 28 * scale, 1, 3} {
    const std::vector<std::uint32_t> counts = {7 * scale, 18 * scale, 1, 0};
    n_rows = 48 * scale;
    const auto rows = scattered_rows(counts, n_rows);
    placements = {{0, 0, 1, rows[0]},
                  {1, 6, kPositions - counts[1], rows[1]},
                  {2, 0, 4099, rows[2]},
                  {3, 2, 5, {}}};
  }
  std::vector<std::uint32_t> tokens;
  std::vector<Placement> placements;
  std::size_t n_rows = 0;
};

// By the device's code, one thread after the other.
void compose_on_host(const PagedRecords& records, const PageLayout& pages, const Scene& scene,
                     const RopeTable& table, CacheImage* image) {
  const std::vector<PagedItem> items = items_of(records, scene.placements);
  const CacheLayout layout = image->at(image->bytes.data());
  RowMoves moves;
  MoveKind kind;
  kind.packed_codec = pages.codec;
  const Status planned =
      plan_moves(image->at(std::as_const(image->bytes).data()), table, kPositions, &moves, &kind);
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  describe_pages(pages, &moves);
  std::vector<MoveToken> tokens;
  for (const PagedItem& item : items) {
    moves.n_tokens += item.n_tokens;
  }
  tokens.resize(moves.n_tokens);
  write_compose_table(items, pages, tokens.data());
  std::vector<std::byte*> layers = layout.k;
  layers.insert(layers.end(), layout.v.begin(), layout.v.end());
  moves.tokens = tokens.data();
  moves.layers = layers.data();
  use_table(table, &moves);
  run_moves_on_host(moves, kind);
}

std::string trace(const MoveCase& c, KvCodec codec, KvCodec dtype, CacheKind kind) {
  return c.name + ", codec " + std::to_string(static_cast<int>(codec)) + " to " +
         std::to_string(static_cast<int>(dtype)) + ", cache " +
         std::to_string(static_cast<int>(kind));
}

TEST(CudaComposeCode, GivesWhatTheCpuGives) {
  const Scene scene;
  for (const MoveCase& c : move_cases()) {
    const auto table = table_of(c);
    for (const KvCodec codec : kCodecs) {
      const PagedRecords records(pages_of(c, codec), scene.tokens, {});
      for (const KvCodec dtype : kDtypes) {
        for (const CacheKind kind : kCacheKinds) {
          SCOPED_TRACE(trace(c, codec, dtype, kind));
          CacheImage want(c.shape, dtype, kind, scene.n_rows);
          CacheImage got = want;
          compose_on_cpu(records, scene.placements, *table, &want);
          compose_on_host(records, pages_of(c, codec), scene, *table, &got);
          ASSERT_TRUE(same_cache(want, got, turned_of(c)));
        }
      }
    }
  }
}

TEST(CudaComposeCode, WideWhereItCanBe) {
  const MoveCase llama = move_cases()[0];
  const auto table = table_of(llama);
  for (const CacheKind kind : kCacheKinds) {
    const CacheImage image(llama.shape, KvCodec::kBf16, kind, 64);
    std::vector<std::byte> room(64);
    const auto at = reinterpret_cast<std::uintptr_t>(room.data());
    const std::byte* aligned = room.data() + (64 - at % 64) % 64;
    for (const KvCodec codec : kCodecs) {
      RowMoves moves;
      MoveKind move;
      move.packed_codec = codec;
      ASSERT_TRUE(plan_moves(image.at(aligned), *table, 1000, &moves, &move).ok());
      EXPECT_EQ(move.wide, kind != CacheKind::kPaddedRows && kind != CacheKind::kOddAddress);
    }
  }
}

TEST(CudaComposeCode, RefusesWhatItCannotDo) {
  const MoveCase llama = move_cases()[0];
  const auto table = table_of(llama);
  const CacheImage image(llama.shape, KvCodec::kBf16, CacheKind::kNoBlocks, 64);
  ConstCacheLayout cache = image.at(image.bytes.data());
  RowMoves moves;
  MoveKind kind;
  EXPECT_EQ(plan_moves(cache, *table, 1U << 26, &moves, &kind).code(), StatusCode::kUnsupported);
  cache.k_strides.element = 64;
  EXPECT_EQ(plan_moves(cache, *table, 10, &moves, &kind).code(), StatusCode::kUnsupported);
}

std::unique_ptr<CudaComposer> composer_of(const MoveCase& c, const CacheLayout& cache,
                                          const PageLayout& pages, std::uint32_t max_tokens) {
  auto composer = CudaComposer::create(table_of(c), cache, pages, max_tokens);
  EXPECT_TRUE(composer.ok()) << composer.status().to_string();
  return composer.ok() ? std::move(*composer) : nullptr;
}

void compose_and_compare(const MoveCase& c, KvCodec codec, KvCodec dtype, CacheKind kind,
                         const Scene& scene, const PagedRecords& records, void* stream) {
  SCOPED_TRACE(trace(c, codec, dtype, kind));
  CacheImage want(c.shape, dtype, kind, scene.n_rows);
  CacheImage got = want;
  const Buffer device = to_device(got.bytes);
  const auto composer = composer_of(c, got.at(device.data()), pages_of(c, codec), 20000);
  ASSERT_NE(composer, nullptr);
  const Status status = composer->compose(items_of(records, scene.placements), stream);
  ASSERT_TRUE(status.ok()) << status.to_string();
  compose_on_cpu(records, scene.placements, *table_of(c), &want);
  ASSERT_TRUE(synchronize(stream).ok());
  from_device(device, &got.bytes);
  ASSERT_TRUE(same_cache(want, got, turned_of(c)));
}

TEST(CudaCompose, GivesWhatTheCpuGives) {
  INFERSCALE_NEEDS_DEVICE();
  const Scene scene;
  for (const MoveCase& c : move_cases()) {
    for (const KvCodec codec : kCodecs) {
      const PagedRecords records(pages_of(c, codec), scene.tokens, {MemoryKind::kDevice});
      for (const KvCodec dtype : kDtypes) {
        for (const CacheKind kind : kCacheKinds) {
          compose_and_compare(c, codec, dtype, kind, scene, records, nullptr);
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST(CudaCompose, PinnedAndMixedPagesInAnotherStream) {
  INFERSCALE_NEEDS_DEVICE();
  const Scene scene(3);
  const Stream stream = std::move(Stream::create()).value();
  for (const MoveCase& c : {move_cases()[0], move_cases()[4], move_cases()[14]}) {
    for (const auto& where : {std::vector<MemoryKind>{MemoryKind::kPinned},
                              std::vector<MemoryKind>{MemoryKind::kDevice, MemoryKind::kPinned}}) {
      for (const KvCodec codec : {KvCodec::kBf16, KvCodec::kQ8, KvCodec::kFp8E4m3}) {
        const PagedRecords records(pages_of(c, codec), scene.tokens, where);
        compose_and_compare(c, codec, KvCodec::kBf16, CacheKind::kPackedRows, scene, records,
                            stream.get());
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST(CudaCompose, LongRecordsAndAllLayers) {
  INFERSCALE_NEEDS_DEVICE();
  MoveCase deep = move_cases()[0];
  deep.shape.n_layers = 32;
  MoveCase longest = deep;
  longest.shape.n_layers = 2;
  for (const auto& [c, n_tokens] : {std::pair{deep, 300U}, std::pair{longest, 8192U}}) {
    Scene scene;
    scene.tokens = {n_tokens};
    scene.n_rows = n_tokens + 16;
    scene.placements = {{0, 0, 100, scattered_rows({n_tokens}, scene.n_rows)[0]}};
    for (const KvCodec codec : {KvCodec::kBf16, KvCodec::kQ8}) {
      const PagedRecords records(pages_of(c, codec), scene.tokens, {MemoryKind::kDevice});
      compose_and_compare(c, codec, KvCodec::kBf16, CacheKind::kPackedRows, scene, records,
                          nullptr);
    }
  }
}

// More calls than tables, without waiting between them; each must read its own table.
TEST(CudaCompose, ManyCallsInFlight) {
  INFERSCALE_NEEDS_DEVICE();
  const MoveCase c = move_cases()[0];
  const PageLayout pages = pages_of(c, KvCodec::kF16);
  const PagedRecords records(pages, {28}, {MemoryKind::kDevice});
  const auto table = table_of(c);
  constexpr std::uint32_t kCalls = 40;
  CacheImage want(c.shape, KvCodec::kF16, CacheKind::kApart, 28 * kCalls);
  CacheImage got = want;
  const Buffer device = to_device(got.bytes);
  const auto composer = composer_of(c, got.at(device.data()), pages, 28);
  ASSERT_NE(composer, nullptr);
  std::vector<Placement> all;
  for (std::uint32_t i = 0; i < kCalls; ++i) {
    std::vector<std::uint32_t> rows(28);
    std::iota(rows.begin(), rows.end(), 28 * i);
    all.push_back({0, 0, 13 * i, rows});
    const std::vector<Placement> one = {all.back()};
    ASSERT_TRUE(composer->compose(items_of(records, one), nullptr).ok());
  }
  compose_on_cpu(records, all, *table, &want);
  from_device(device, &got.bytes);
  EXPECT_TRUE(same_cache(want, got, turned_of(c)));
}

TEST(CudaCompose, RefusesWhatIsOutOfRange) {
  INFERSCALE_NEEDS_DEVICE();
  const MoveCase c = move_cases()[4];
  const PageLayout pages = pages_of(c, KvCodec::kF16);
  const PagedRecords records(pages, {8}, {MemoryKind::kDevice});
  CacheImage image(c.shape, KvCodec::kF16, CacheKind::kApart, 16);
  const std::vector<std::byte> before = image.bytes;
  const Buffer device = to_device(image.bytes);
  const auto composer = composer_of(c, image.at(device.data()), pages, 8);
  ASSERT_NE(composer, nullptr);
  const std::vector<std::uint32_t> rows = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<std::uint32_t> beyond = {0, 16};
  const auto& all = records.pages(0);
  const std::vector<const std::byte*> odd = {all[0] + 2};
  const PagedItem good{all, 0, 8, 0, rows};
  const std::vector<std::vector<PagedItem>> refused = {
      {{all, 0, 2, 0, beyond}},                           // row
      {{all, 0, 8, kPositions - 7, rows}},                // position
      {{all, 1, 8, 0, rows}},                             // pages
      {{all, 0, 7, 0, rows}},                             // number of rows
      {{odd, 0, 1, 0, std::span(rows).first(1)}},         // address
      {good, {all, 0, 1, 0, std::span(rows).first(1)}}};  // tokens
  for (const auto& items : refused) {
    EXPECT_EQ(composer->compose(items, nullptr).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(composer->compose({}, nullptr).ok());
  from_device(device, &image.bytes);
  EXPECT_EQ(image.bytes, before);
  EXPECT_TRUE(composer->compose({&good, 1}, nullptr).ok());
}

}  // namespace
}  // namespace inferscale::cuda
