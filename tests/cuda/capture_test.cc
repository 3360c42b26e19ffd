#include <cmath>
#include <cstring>
#include <limits>

#include "cuda/move_rig.h"
#include "kernels/cuda/kv_capture.h"
#include "unit/kernels/reference.h"

namespace inferscale::cuda {
namespace {

constexpr KvCodec kDtypes[] = {KvCodec::kF16, KvCodec::kBf16, KvCodec::kF32};
constexpr KvCodec kCodecs[] = {KvCodec::kF16, KvCodec::kBf16, KvCodec::kF32, KvCodec::kQ8,
                               KvCodec::kFp8E4m3};

// Three runs at once, rows in no order.
struct Scene {
  Scene() {
    const auto scattered = scattered_rows({7, 1, 20}, n_rows);
    rows = {scattered[0], scattered[1], scattered[2]};
  }
  std::size_t n_rows = 48;
  std::uint32_t positions[3] = {1, kPositions - 1, 700};
  std::vector<std::vector<std::uint32_t>> rows;
};

// A cache full of keys and values, also where no cell is.
void fill(CacheImage* image, KvCodec dtype, CacheKind kind) {
  const std::size_t element = codec_element_bytes(dtype);
  const std::size_t front = kind == CacheKind::kOddAddress ? 1 : 0;
  kernels::fill_random(dtype, image->bytes.data() + front, (image->bytes.size() - front) / element,
                       99);
}

RecordBuilder builder_of(const KvShape& shape, KvCodec codec, std::size_t n_tokens) {
  auto builder =
      RecordBuilder::create(kernels::meta_of(shape, codec), std::vector<TokenId>(n_tokens, 5));
  EXPECT_TRUE(builder.ok());
  return std::move(*builder);
}

// Of turned heads, whose largest magnitude may differ by fp32's error: by one of its 16 bits.
::testing::AssertionResult same_scales(std::size_t count, const std::byte* want,
                                       const std::byte* got) {
  for (std::size_t i = 0; i < count; ++i) {
    const double w = kernels::read_element(KvCodec::kF32, want + i * sizeof(float));
    const double g = kernels::read_element(KvCodec::kF32, got + i * sizeof(float));
    if (!(std::fabs(w - g) <= w * std::ldexp(1.0, -15))) {
      return ::testing::AssertionFailure() << "scale " << i << " is " << g << ", not " << w;
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult same_record(const MoveCase& c, RecordBuilder& want, RecordBuilder& got) {
  const KvCodec codec = want.meta().codec;
  const std::size_t heads = std::size_t{want.n_tokens()} * c.shape.n_kv_heads;
  for (std::uint32_t l = 0; l < c.shape.n_layers; ++l) {
    auto same =
        same_heads(codec, heads, c.shape.head_dim_k, turned_of(c), want.layer_k(l), got.layer_k(l));
    if (!same) {
      return same << " of K, layer " << l;
    }
    same = same_heads(codec, heads, c.shape.head_dim_v, {}, want.layer_v(l), got.layer_v(l));
    if (!same) {
      return same << " of V, layer " << l;
    }
    if (codec_is_scaled(codec)) {
      same = same_scales(heads, want.layer_part(l, KvPart::kKScales),
                         got.layer_part(l, KvPart::kKScales));
      if (!same) {
        return same << " of K, layer " << l;
      }
      if (std::memcmp(want.layer_part(l, KvPart::kVScales), got.layer_part(l, KvPart::kVScales),
                      heads * sizeof(float)) != 0) {
        return ::testing::AssertionFailure() << "scales of V, layer " << l;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

RecordBuilder capture_on_cpu(const MoveCase& c, KvCodec codec, const CacheImage& image,
                             const std::vector<std::uint32_t>& rows, std::uint32_t position) {
  RecordBuilder builder = builder_of(c.shape, codec, rows.size());
  const Status status =
      kv_capture(image.at(image.bytes.data()), {position, 0, rows}, *table_of(c), builder);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return builder;
}

// By the device's code, one thread after the other, straight into records.
void capture_on_host(const MoveCase& c, KvCodec codec, CacheImage* image, const Scene& scene,
                     std::vector<RecordBuilder>* records) {
  const auto table = table_of(c);
  RowMoves moves;
  MoveKind kind;
  kind.capture = true;
  kind.packed_codec = codec;
  ASSERT_TRUE(
      plan_moves(image->at(std::as_const(image->bytes).data()), *table, 1000, &moves, &kind).ok());
  const CacheLayout layout = image->at(image->bytes.data());
  std::vector<std::byte*> layers = layout.k;
  layers.insert(layers.end(), layout.v.begin(), layout.v.end());
  std::vector<PackedRun> runs;
  std::vector<MoveToken> tokens;
  for (std::size_t i = 0; i < scene.rows.size(); ++i) {
    records->push_back(builder_of(c.shape, codec, scene.rows[i].size()));
    RecordBuilder& b = records->back();
    runs.push_back(
        {reinterpret_cast<std::uint64_t>(b.layer_k(0)),
         c.shape.n_layers > 1 ? static_cast<std::uint64_t>(b.layer_k(1) - b.layer_k(0)) : 0,
         static_cast<std::uint64_t>(b.layer_v(0) - b.layer_k(0)),
         static_cast<std::uint64_t>(b.layer_part(0, KvPart::kKScales) - b.layer_k(0)),
         static_cast<std::uint64_t>(b.layer_part(0, KvPart::kVScales) - b.layer_k(0)),
         static_cast<std::uint32_t>(tokens.size()), scene.positions[i]});
    for (const std::uint32_t row : scene.rows[i]) {
      tokens.push_back({i, row, 0});
    }
  }
  moves.runs = runs.data();
  moves.tokens = tokens.data();
  moves.n_tokens = static_cast<std::uint32_t>(tokens.size());
  moves.layers = layers.data();
  use_table(*table, &moves);
  run_moves_on_host(moves, kind);
}

TEST(CudaCaptureCode, GivesWhatTheCpuGives) {
  const Scene scene;
  for (const MoveCase& c : move_cases()) {
    for (const KvCodec dtype : kDtypes) {
      for (const CacheKind kind : kCacheKinds) {
        CacheImage image(c.shape, dtype, kind, scene.n_rows);
        fill(&image, dtype, kind);
        for (const KvCodec codec : kCodecs) {
          std::vector<RecordBuilder> got;
          capture_on_host(c, codec, &image, scene, &got);
          for (std::size_t i = 0; i < scene.rows.size(); ++i) {
            RecordBuilder want = capture_on_cpu(c, codec, image, scene.rows[i], scene.positions[i]);
            ASSERT_TRUE(same_record(c, want, got[i]))
                << c.name << " from " << static_cast<int>(dtype) << " to "
                << static_cast<int>(codec) << ", cache " << static_cast<int>(kind);
          }
        }
      }
    }
  }
}

std::unique_ptr<CudaCapturer> capturer_of(const MoveCase& c, const ConstCacheLayout& cache,
                                          const CudaCapturer::Options& options) {
  auto rope = DeviceRope::upload(table_of(c));
  EXPECT_TRUE(rope.ok());
  auto capturer = CudaCapturer::create(*rope, cache, options);
  EXPECT_TRUE(capturer.ok()) << capturer.status().to_string();
  return capturer.ok() ? std::move(*capturer) : nullptr;
}

std::vector<CaptureRun> runs_of(const Scene& scene) {
  std::vector<CaptureRun> runs;
  for (std::size_t i = 0; i < scene.rows.size(); ++i) {
    runs.push_back({scene.positions[i], scene.rows[i]});
  }
  return runs;
}

void capture_and_compare(const MoveCase& c, KvCodec dtype, KvCodec codec, CacheKind kind,
                         const Scene& scene, void* stream) {
  CacheImage image(c.shape, dtype, kind, scene.n_rows);
  fill(&image, dtype, kind);
  const Buffer device = to_device(image.bytes);
  const auto capturer =
      capturer_of(c, image.at(static_cast<const std::byte*>(device.data())), {codec, 1000, 3, 2});
  ASSERT_NE(capturer, nullptr);
  const auto batch = capturer->start(runs_of(scene), stream);
  ASSERT_TRUE(batch.ok()) << batch.status().to_string();
  ASSERT_TRUE(capturer->wait(*batch).ok());
  for (std::size_t i = 0; i < scene.rows.size(); ++i) {
    RecordBuilder got = builder_of(c.shape, codec, scene.rows[i].size());
    ASSERT_TRUE(capturer->fill(*batch, i, got).ok());
    RecordBuilder want = capture_on_cpu(c, codec, image, scene.rows[i], scene.positions[i]);
    ASSERT_TRUE(same_record(c, want, got))
        << c.name << " from " << static_cast<int>(dtype) << " to " << static_cast<int>(codec)
        << ", cache " << static_cast<int>(kind);
  }
}

TEST(CudaCapture, GivesWhatTheCpuGives) {
  INFERSCALE_NEEDS_DEVICE();
  const Scene scene;
  const Stream stream = std::move(Stream::create()).value();
  for (const MoveCase& c : move_cases()) {
    for (const KvCodec dtype : kDtypes) {
      for (const KvCodec codec : kCodecs) {
        for (const CacheKind kind : kCacheKinds) {
          capture_and_compare(c, dtype, codec, kind, scene, stream.get());
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

// A cache of which one row of three is spoilt: of the run in the middle, which alone must be
// refused.
CacheImage spoilt_cache(const MoveCase& c, const Scene& scene, bool keys) {
  CacheImage image(c.shape, KvCodec::kF32, CacheKind::kNoBlocks, scene.n_rows);
  fill(&image, KvCodec::kF32, CacheKind::kNoBlocks);
  const CacheLayout layout = image.at(image.bytes.data());
  const CacheStrides& strides = keys ? layout.k_strides : layout.v_strides;
  std::byte* layer = (keys ? layout.k : layout.v).back();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(layer + scene.rows[1][0] * strides.row + strides.head, &nan, sizeof(nan));
  return image;
}

TEST(CudaCaptureCode, MarksWhatAScaledCodecCannotHold) {
  const MoveCase c{"small", {2, 3, 24, 16}, 16, RopePairing::kHalves};
  const Scene scene;
  for (const bool keys : {true, false}) {
    CacheImage image = spoilt_cache(c, scene, keys);
    std::vector<RecordBuilder> got;
    capture_on_host(c, KvCodec::kQ8, &image, scene, &got);
    EXPECT_TRUE(got[0].check_scales().ok());
    EXPECT_TRUE(got[2].check_scales().ok());
    const Status bad = got[1].check_scales();
    EXPECT_EQ(bad.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(bad.message().find("layer 1, token 0, head 1"), std::string::npos) << bad.message();
  }
}

TEST(CudaCapture, RefusesWhatAScaledCodecCannotHold) {
  INFERSCALE_NEEDS_DEVICE();
  const MoveCase c{"small", {2, 3, 24, 16}, 16, RopePairing::kHalves};
  const Scene scene;
  for (const bool keys : {true, false}) {
    CacheImage image = spoilt_cache(c, scene, keys);
    const Buffer device = to_device(image.bytes);
    const auto capturer = capturer_of(c, image.at(static_cast<const std::byte*>(device.data())),
                                      {KvCodec::kQ8, 1000, 3, 2});
    ASSERT_NE(capturer, nullptr);
    const auto batch = capturer->start(runs_of(scene), nullptr);
    ASSERT_TRUE(batch.ok());
    ASSERT_TRUE(capturer->wait(*batch).ok());
    for (std::size_t run = 0; run < 3; ++run) {
      RecordBuilder builder = builder_of(c.shape, KvCodec::kQ8, scene.rows[run].size());
      EXPECT_EQ(capturer->fill(*batch, run, builder).code(),
                run == 1 ? StatusCode::kInvalidArgument : StatusCode::kOk);
    }
  }
}

TEST(CudaCapture, LongRuns) {
  INFERSCALE_NEEDS_DEVICE();
  MoveCase c = move_cases()[0];
  c.shape.n_layers = 2;
  Scene scene;
  scene.n_rows = 900;
  scene.rows = scattered_rows({850, 3, 28}, scene.n_rows);
  scene.positions[1] = kPositions - 3;
  for (const KvCodec codec : {KvCodec::kBf16, KvCodec::kQ8, KvCodec::kFp8E4m3}) {
    capture_and_compare(c, KvCodec::kBf16, codec, CacheKind::kPackedRows, scene, nullptr);
  }
}

TEST(CudaCapture, BatchesAreKeptUntilTheyAreReleased) {
  INFERSCALE_NEEDS_DEVICE();
  const MoveCase c = move_cases()[4];
  const Scene scene;
  CacheImage image(c.shape, KvCodec::kF16, CacheKind::kApart, scene.n_rows);
  fill(&image, KvCodec::kF16, CacheKind::kApart);
  const Buffer device = to_device(image.bytes);
  const auto capturer = capturer_of(c, image.at(static_cast<const std::byte*>(device.data())),
                                    {KvCodec::kF16, 28, 3, 2});
  ASSERT_NE(capturer, nullptr);
  const auto runs = runs_of(scene);
  const auto first = capturer->start(runs, nullptr);
  const auto second = capturer->start(std::span(runs).first(1), nullptr);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(capturer->start(runs, nullptr).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(capturer->wait(*second).ok());
  EXPECT_TRUE(*capturer->ready(*first)) << "it stood before the second in the stream";
  RecordBuilder got = builder_of(c.shape, KvCodec::kF16, scene.rows[0].size());
  ASSERT_TRUE(capturer->fill(*second, 0, got).ok());
  EXPECT_EQ(capturer->fill(*second, 1, got).code(), StatusCode::kNotFound);
  EXPECT_EQ(capturer->fill(*first, 1, got).code(), StatusCode::kInvalidArgument);
  capturer->release(*first);
  EXPECT_EQ(capturer->wait(*first).code(), StatusCode::kNotFound);
  const auto third = capturer->start(std::span(runs).last(1), nullptr);
  ASSERT_TRUE(third.ok());
  RecordBuilder want = capture_on_cpu(c, KvCodec::kF16, image, scene.rows[0], scene.positions[0]);
  EXPECT_TRUE(same_record(c, want, got)) << "the batch that was not released is untouched";
  const std::vector<std::uint32_t> beyond = {64};
  capturer->release(*second);
  for (const CaptureRun& run :
       {CaptureRun{0, beyond}, CaptureRun{kPositions, scene.rows[1]}, CaptureRun{0, {}}}) {
    EXPECT_EQ(capturer->start({&run, 1}, nullptr).status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace inferscale::cuda
