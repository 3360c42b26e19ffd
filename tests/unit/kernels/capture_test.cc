#include <cstring>
#include <numeric>
#include <optional>

#include "inferscale/kv_kernels.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/targets.h"
#include "unit/kernels/test_cache.h"

namespace inferscale::kernels {
namespace {

class CaptureTest : public TargetTest {};
INFERSCALE_ON_EVERY_TARGET(CaptureTest);

constexpr std::uint32_t kPositions = 2048;
constexpr KvCodec kDtypes[] = {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16};
constexpr KvCodec kCodecs[] = {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16, KvCodec::kQ8,
                               KvCodec::kFp8E4m3};

std::optional<RecordBuilder> builder_of(const KvShape& shape, KvCodec codec,
                                        std::uint32_t n_tokens) {
  auto builder = RecordBuilder::create(meta_of(shape, codec), std::vector<TokenId>(n_tokens, 5));
  if (!builder.ok()) {
    ADD_FAILURE() << builder.status().to_string();
    return std::nullopt;
  }
  return std::move(*builder);
}

// Every key and value of the builder against the reference.
void expect_captured(const TestCache& cache, const CaptureSource& source, const RopeSpec& spec,
                     RecordBuilder& builder) {
  const KvShape& shape = builder.meta().shape;
  for (std::uint32_t t = 0; t < builder.n_tokens(); ++t) {
    const ReferenceRotation rotation(spec, Turn::kBack, source.first_position + t);
    const std::size_t row = source.rows.empty() ? source.first_row + t : source.rows[t];
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
      for (std::uint32_t head = 0; head < shape.n_kv_heads; ++head) {
        const Head key = packed_head(builder, layer, KvPart::kK, t, head);
        const Head value = packed_head(builder, layer, KvPart::kV, t, head);
        ASSERT_TRUE(rotation.turns(shape.head_dim_k, cache.k(layer, row, head), key))
            << "layer " << layer << " token " << t << " head " << head;
        ASSERT_TRUE(is_converted(shape.head_dim_v, cache.v(layer, row, head), value))
            << "value, layer " << layer << " token " << t << " head " << head;
      }
    }
  }
}

// Bytes of the builder from its first key to its last value that belong to no layer must stay.
class Padding {
 public:
  explicit Padding(RecordBuilder& builder) : bytes_(gaps(builder)) {}
  [[nodiscard]] bool kept(RecordBuilder& builder) const { return gaps(builder) == bytes_; }

 private:
  static std::vector<std::byte> gaps(RecordBuilder& builder) {
    const KvShape& shape = builder.meta().shape;
    std::vector<std::byte> bytes;
    const std::byte* end = builder.layer_k(0);
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
      for (const KvPart part : kKvParts) {
        const std::byte* begin = builder.layer_part(layer, part);
        bytes.insert(bytes.end(), end, begin);
        end = begin + builder.n_tokens() * part_token_bytes(shape, builder.meta().codec, part);
      }
    }
    return bytes;
  }

  std::vector<std::byte> bytes_;
};

void capture_and_check(const KvShape& shape, const RopeSpec& spec, KvCodec dtype, KvCodec codec,
                       Arrangement arrangement, std::span<const std::uint32_t> rows) {
  SCOPED_TRACE(describe(shape) + ", " + describe(spec) + ", " + describe(arrangement) + ", dtype " +
               std::to_string(static_cast<int>(dtype)) + " to " +
               std::to_string(static_cast<int>(codec)));
  const auto table = table_of(spec, kPositions);
  TestCache cache(shape, dtype, 12, arrangement);
  for (const std::uint32_t n_tokens : {1U, 5U}) {
    auto builder = builder_of(shape, codec, n_tokens);
    ASSERT_TRUE(builder.has_value());
    const Padding padding(*builder);
    CaptureSource source;
    source.first_position = n_tokens == 1 ? 1 : kPositions - 5;
    source.first_row = 12 - n_tokens;
    source.rows = rows.empty() ? rows : rows.first(n_tokens);
    const Status status = kv_capture(cache.const_layout(), source, *table, *builder);
    ASSERT_TRUE(status.ok()) << status.to_string();
    expect_captured(cache, source, spec, *builder);
    EXPECT_TRUE(padding.kept(*builder));
  }
  EXPECT_TRUE(cache.intact_except({}));
}

TEST_P(CaptureTest, MatchesTheReference) {
  const struct {
    KvShape shape;
    std::uint32_t rotary_dim;
  } cases[] = {{{2, 3, 64, 64}, 64},    {{1, 8, 128, 128}, 128}, {{2, 2, 96, 96}, 96},
               {{1, 1, 256, 256}, 256}, {{1, 64, 64, 64}, 64},   {{2, 5, 80, 48}, 20},
               {{1, 2, 34, 30}, 34},    {{1, 1, 2, 1}, 2},       {{2, 3, 6, 7}, 4},
               {{1, 2, 130, 129}, 126}, {{3, 1, 1024, 1}, 1024}};
  for (const auto& c : cases) {
    for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalves}) {
      const std::vector<RopeSpec> specs = specs_of_every_scaling(pairing, c.rotary_dim);
      for (const RopeSpec& spec : specs) {
        for (const KvCodec dtype : kDtypes) {
          for (const KvCodec codec : kCodecs) {
            const bool plain = codec != KvCodec::kBf16 && dtype != KvCodec::kBf16;
            if ((!plain || codec_is_scaled(codec)) && &spec != &specs.back()) {
              continue;  // one scaling does for these pairs
            }
            capture_and_check(c.shape, spec, dtype, codec, Arrangement::kPacked, {});
            if (HasFatalFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

TEST_P(CaptureTest, EveryArrangementAndScatteredRows) {
  const std::uint32_t scattered[] = {7, 0, 11, 3, 10};
  const RopeSpec spec = specs_of_every_scaling(RopePairing::kAdjacent, 12)[3];
  for (const Arrangement arrangement : kArrangements) {
    for (const KvCodec dtype : kDtypes) {
      for (const KvCodec codec : kCodecs) {
        capture_and_check({2, 3, 20, 18}, spec, dtype, codec, arrangement, scattered);
        capture_and_check({2, 3, 20, 18}, spec, dtype, codec, arrangement, {});
      }
    }
  }
}

// From a row in the middle of a block, over several blocks and tiles.
TEST_P(CaptureTest, BlocksOfAnySize) {
  const struct {
    KvShape shape;
    std::uint32_t rotary_dim;
    std::size_t block;
  } cases[] = {{{2, 3, 64, 64}, 64, 16}, {{1, 2, 64, 64}, 32, 32}, {{1, 2, 20, 18}, 12, 128}};
  for (const auto& c : cases) {
    for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalves}) {
      const RopeSpec spec = specs_of_every_scaling(pairing, c.rotary_dim)[3];
      for (const KvCodec dtype : kDtypes) {
        for (const Arrangement arrangement :
             {Arrangement::kCpuBlocks, Arrangement::kTransposedBlocks, Arrangement::kElementMajor,
              Arrangement::kPairedBlocks}) {
          SCOPED_TRACE(describe(arrangement) + " of " + std::to_string(c.block));
          const TestCache cache(c.shape, dtype, 256, arrangement, c.block);
          for (const KvCodec codec : {dtype, KvCodec::kQ8, KvCodec::kFp8E4m3}) {
            auto builder = builder_of(c.shape, codec, 150);
            ASSERT_TRUE(builder.has_value());
            const Padding padding(*builder);
            const CaptureSource source{3, 27, {}};
            for (const LayerRange layers :
                 {LayerRange{0, 1}, LayerRange{c.shape.n_layers - 1, 0}}) {
              ASSERT_TRUE(kv_capture(cache.const_layout(), source, *table_of(spec, kPositions),
                                     *builder, layers)
                              .ok());
            }
            expect_captured(cache, source, spec, *builder);
            EXPECT_TRUE(padding.kept(*builder));
          }
        }
      }
    }
  }
}

TEST_P(CaptureTest, SealedRecordVerifies) {
  const KvShape shape{2, 3, 20, 18};
  const RopeSpec spec = specs_of_every_scaling(RopePairing::kHalves, 20)[0];
  TestCache cache(shape, KvCodec::kF32, 40);
  auto builder = builder_of(shape, KvCodec::kF16, 33);
  ASSERT_TRUE(builder.has_value());
  ASSERT_TRUE(
      kv_capture(cache.const_layout(), {9, 7, {}}, *table_of(spec, kPositions), *builder).ok());
  const auto record = std::move(*builder).seal();
  EXPECT_TRUE(record->verify().ok());
  EXPECT_TRUE(Record::parse(record->bytes()).ok());
}

}  // namespace
}  // namespace inferscale::kernels
