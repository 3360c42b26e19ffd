#include <cmath>
#include <random>

#include "inferscale/kv_kernels.h"
#include "unit/kernels/reference.h"
#include "unit/kernels/targets.h"
#include "unit/kernels/test_cache.h"

// Records hold keys without the bias that their model adds.
namespace inferscale::kernels {
namespace {

class KeyBiasTest : public TargetTest {};
INFERSCALE_ON_EVERY_TARGET(KeyBiasTest);

constexpr std::uint32_t kPositions = 2048;
constexpr std::uint32_t kTokens = 5;
constexpr KvCodec kDtypes[] = {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16};
constexpr KvCodec kCodecs[] = {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16, KvCodec::kQ8,
                               KvCodec::kFp8E4m3};

struct Case {
  KvShape shape;
  std::uint32_t rotary_dim = 0;
  Arrangement arrangement = Arrangement::kPacked;
};

// Whole heads and parts of them turned; elements of a head together and apart.
std::vector<Case> cases() {
  std::vector<Case> all = {{{2, 2, 128, 128}, 128}, {{2, 3, 64, 64}, 32}, {{3, 1, 1024, 1}, 1024}};
  for (const Arrangement arrangement : kArrangements) {
    all.push_back({{2, 3, 20, 18}, 12, arrangement});
  }
  return all;
}

RopeSpec spec_of(const Case& c, RopePairing pairing) {
  return specs_of_every_scaling(pairing, c.rotary_dim)[3];
}

std::shared_ptr<const RopeTable> biased_table(const RopeSpec& spec, const KvShape& shape) {
  return table_of(spec, kPositions, large_bias(shape));
}

// `head`, of keys that lack the bias.
Head without_bias(Head head, const std::vector<float>& bias, const KvShape& shape,
                  std::uint32_t layer, std::uint32_t index) {
  head.bias = bias.data() + (layer * shape.n_kv_heads + index) * shape.head_dim_k;
  return head;
}

// Calls `check(layer, token, head)` for every head; true when all were right.
template <typename Check>
void for_every_head(const KvShape& shape, const Check& check) {
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (std::uint32_t token = 0; token < kTokens; ++token) {
      for (std::uint32_t head = 0; head < shape.n_kv_heads; ++head) {
        ASSERT_TRUE(check(layer, token, head))
            << "layer " << layer << " token " << token << " head " << head;
      }
    }
  }
}

void compose_and_check(const Case& c, RopePairing pairing, KvCodec codec, KvCodec dtype) {
  SCOPED_TRACE(describe(c.shape) + ", " + describe(c.arrangement) + ", codec " +
               std::to_string(static_cast<int>(codec)) + " to " +
               std::to_string(static_cast<int>(dtype)));
  const RopeSpec spec = spec_of(c, pairing);
  const std::vector<float> bias = large_bias(c.shape);
  const auto record = random_record(meta_of(c.shape, codec), kTokens, 21);
  TestCache cache(c.shape, dtype, 12, c.arrangement);
  const ComposeItem items[] = {{record.get(), 100, 4, {}}};
  ASSERT_TRUE(kv_compose(items, *biased_table(spec, c.shape), cache.layout()).ok());
  for_every_head(c.shape, [&](std::uint32_t layer, std::uint32_t token, std::uint32_t head) {
    const Head key = packed_head(*record, layer, KvPart::kK, token, head);
    const auto turned =
        ReferenceRotation(spec, Turn::kForward, 100 + token)
            .turns(c.shape.head_dim_k, without_bias(key, bias, c.shape, layer, head),
                   cache.k(layer, 4 + token, head));
    return turned ? is_converted(c.shape.head_dim_v,
                                 packed_head(*record, layer, KvPart::kV, token, head),
                                 cache.v(layer, 4 + token, head))
                  : turned;
  });
}

void capture_and_check(const Case& c, RopePairing pairing, KvCodec codec, KvCodec dtype) {
  SCOPED_TRACE(describe(c.shape) + ", " + describe(c.arrangement) + ", dtype " +
               std::to_string(static_cast<int>(dtype)) + " to " +
               std::to_string(static_cast<int>(codec)));
  const RopeSpec spec = spec_of(c, pairing);
  const std::vector<float> bias = large_bias(c.shape);
  const TestCache cache(c.shape, dtype, 12, c.arrangement);
  auto builder =
      RecordBuilder::create(meta_of(c.shape, codec), std::vector<TokenId>(kTokens, 5)).value();
  ASSERT_TRUE(
      kv_capture(cache.const_layout(), {100, 4, {}}, *biased_table(spec, c.shape), builder).ok());
  for_every_head(c.shape, [&](std::uint32_t layer, std::uint32_t token, std::uint32_t head) {
    const Head key = packed_head(builder, layer, KvPart::kK, token, head);
    const auto turned = ReferenceRotation(spec, Turn::kBack, 100 + token)
                            .turns(c.shape.head_dim_k, cache.k(layer, 4 + token, head),
                                   without_bias(key, bias, c.shape, layer, head));
    return turned ? is_converted(c.shape.head_dim_v, cache.v(layer, 4 + token, head),
                                 packed_head(builder, layer, KvPart::kV, token, head))
                  : turned;
  });
}

TEST_P(KeyBiasTest, IsAddedBeforeTheRotationAndTakenAwayBehindIt) {
  for (const Case& c : cases()) {
    for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalves}) {
      for (const KvCodec codec : kCodecs) {
        for (const KvCodec dtype : kDtypes) {
          compose_and_check(c, pairing, codec, dtype);
          capture_and_check(c, pairing, codec, dtype);
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

// A record of normal keys.
std::shared_ptr<const Record> normal_record(const KvShape& shape) {
  auto builder =
      RecordBuilder::create(meta_of(shape, KvCodec::kF16), std::vector<TokenId>(kTokens, 5))
          .value();
  std::mt19937_64 random(31);
  std::normal_distribution<double> normal;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (std::size_t i = 0; i < kTokens * shape.k_elements(); ++i) {
      write_element(KvCodec::kF16, normal(random), builder.layer_k(layer) + 2 * i);
    }
  }
  return std::move(builder).seal();
}

// Normal keys and a bias of up to 200, in a scaled codec: how far the worst element is from its
// value, beside what fp32 loses of such keys, in steps of the scale that its head has without the
// bias.
double worst_steps(KvCodec codec, const RopeTable& into_the_cache, const RopeTable& table) {
  const KvShape shape{2, 2, 64, 64};
  const auto keys = normal_record(shape);
  TestCache cache(shape, KvCodec::kF32, kTokens);
  const ComposeItem items[] = {{keys.get(), 7, 0, {}}};
  auto builder =
      RecordBuilder::create(meta_of(shape, codec), std::vector<TokenId>(kTokens, 5)).value();
  EXPECT_TRUE(kv_compose(items, into_the_cache, cache.layout()).ok());
  EXPECT_TRUE(kv_capture(cache.const_layout(), {7, 0, {}}, table, builder).ok());
  const std::vector<float> bias = large_bias(shape);
  double worst = 0;
  for_every_head(shape, [&](std::uint32_t layer, std::uint32_t token, std::uint32_t head) {
    const Head exact = packed_head(*keys, layer, KvPart::kK, token, head);
    const Head got = packed_head(builder, layer, KvPart::kK, token, head);
    const float* left = bias.data() + (layer * 2 + head) * 64;  // in a record with the bias
    double largest = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      largest = std::max(largest, std::fabs(exact.value(i)));
    }
    const double scale = reference_scale(codec, largest);
    for (std::size_t i = 0; i < 64; ++i) {
      const double error =
          std::fabs(got.value(i) - (table.key_bias().empty() ? left[i] : 0) - exact.value(i));
      worst = std::max(
          worst, (error - std::ldexp(200.0, -20)) / (2 * half_step(codec, exact.value(i), scale)));
    }
    return true;
  });
  return worst;
}

TEST_P(KeyBiasTest, DoesNotDecideTheScaleOfItsHead) {
  const KvShape shape{2, 2, 64, 64};
  const RopeSpec spec = specs_of_every_scaling(RopePairing::kHalves, 64)[0];
  const auto biased = biased_table(spec, shape);
  const auto plain = table_of(spec, kPositions);
  for (const KvCodec codec : {KvCodec::kQ8, KvCodec::kFp8E4m3}) {
    EXPECT_LE(worst_steps(codec, *biased, *biased), 0.5);
    EXPECT_GE(worst_steps(codec, *biased, *plain), 10.0);
  }
}

TEST(KeyBias, IsCheckedBeforeItIsUsed) {
  const KvShape shape{2, 3, 8, 8};
  const RopeSpec spec = specs_of_every_scaling(RopePairing::kHalves, 8)[0];
  std::vector<float> bias = large_bias(shape);
  EXPECT_TRUE(check_key_bias({}, shape).ok());
  EXPECT_TRUE(check_key_bias(bias, shape).ok());
  EXPECT_EQ(check_key_bias(std::span(bias).first(47), shape).code(), StatusCode::kInvalidArgument);
  bias.back() = std::nanf("");
  EXPECT_EQ(check_key_bias(bias, shape).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeTable::build(spec, 8, bias).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::kernels
