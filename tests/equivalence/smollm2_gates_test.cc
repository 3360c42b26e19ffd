// Gates E1 and E2 on SmolLM2-135M: exact limits with f32 weights, and against the model's own noise
// with the packaged Q4_1, whose weights round activations to 8 bits.

#include <gtest/gtest.h>

#include "equivalence/gate_cases.h"

namespace inferscale::testing {
namespace {

constexpr std::size_t kContext = 100;
constexpr std::size_t kQuestion = 5;

class SmolLm2Gates : public ::testing::TestWithParam<CacheAndStore> {};

TEST_P(SmolLm2Gates, F32Weights) {
  const CacheAndStore& setting = GetParam();
  LlamaRig rig({.model = packaged_model_f32(), .cache_dtype = setting.cache});
  JointContext context(rig, kContext, kQuestion);
  const std::uint32_t last = rig.spec().trained_positions - context.size();
  ASSERT_EQ(rig.spec().trained_positions, 8192U);
  for (const std::uint32_t start : {1U, last}) {
    context.prefill(start, setting.store);
    const GateFigures same = context.inject(start);
    EXPECT_LE(same.difference, setting.limits.e1_difference) << "E1 at " << start;
    EXPECT_LE(same.kl, setting.limits.e1_kl) << "E1 at " << start;
    EXPECT_TRUE(same.same_greedy || setting.store != KvCodec::kF32) << "E1 at " << start;
    if (setting.cache == KvCodec::kF16 && setting.store == KvCodec::kF32) {
      EXPECT_LE(same.changed, 1e-4);
      EXPECT_LE(same.difference, same.changed == 0 ? 0 : 1e-3);
    }
    const std::uint32_t elsewhere = start == 1 ? last : 1;
    EXPECT_LE(context.inject(elsewhere).difference, setting.limits.e2_difference)
        << "E2 " << start << " to " << elsewhere;
    EXPECT_GT(context.inject(start, 1).difference, 10 * setting.limits.e1_difference);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, SmolLm2Gates, ::testing::ValuesIn(gate_settings()));

/// Mean KL over contexts: between two batch splits of the same text, and between text and
/// injection.
struct NoiseFigures {
  double floor = 0;
  double injected = 0;
  double relocated = 0;
  double off_by_one = 0;
};

NoiseFigures measure_q4(KvCodec cache, KvCodec store) {
  NoiseFigures figures;
  LlamaRig rig({.model = packaged_model(), .cache_dtype = cache});
  for (const std::uint32_t seed : {1U, 11U, 21U}) {
    const std::vector<TokenId> context = random_tokens(kContext, rig.spec().vocab_size, seed);
    const std::vector<TokenId> question = random_tokens(kQuestion, rig.spec().vocab_size, seed + 1);
    std::vector<TokenId> joint = context;
    joint.insert(joint.end(), question.begin(), question.end());
    rig.clear();
    rig.decode(context, 1, 1);
    const auto record = rig.capture(context, 1, store);
    const LogitRows text = rig.decode(question, 1 + kContext, kQuestion);
    rig.clear();
    figures.floor += mean_kl(text, rig.decode(joint, 1, kQuestion)) / 3;
    const auto injected = [&](std::uint32_t start, std::uint32_t rotation_error) {
      rig.clear();
      rig.inject({{record, start}}, rotation_error);
      return mean_kl(text, rig.decode(question, start + kContext, kQuestion)) / 3;
    };
    figures.injected += injected(1, 0);
    figures.relocated += injected(8000, 0);
    figures.off_by_one += injected(1, 1);
  }
  return figures;
}

TEST(SmolLm2Q4Gates, InjectionIsWithinTheModelsOwnNoise) {
  for (const auto& [cache, store] :
       {std::pair{KvCodec::kF16, KvCodec::kF16}, {KvCodec::kF32, KvCodec::kF32}}) {
    const NoiseFigures figures = measure_q4(cache, store);
    EXPECT_GT(figures.floor, 1e-4)
        << "no noise to compare with: are these really 8-bit activations?";
    EXPECT_LE(figures.injected, 2 * figures.floor);
    EXPECT_LE(figures.relocated, 2 * figures.floor);
    EXPECT_GT(figures.off_by_one, 3 * figures.floor);
  }
}

TEST(SmolLm2Q4Gates, AnF16CacheThroughF32RecordsIsTheSameCache) {
  LlamaRig rig({.model = packaged_model(), .cache_dtype = KvCodec::kF16});
  JointContext context(rig, kContext, kQuestion);
  context.prefill(1, KvCodec::kF32);
  const GateFigures figures = context.inject(1);
  EXPECT_LE(figures.changed, 1e-4);
  EXPECT_TRUE(figures.same_greedy);
}

}  // namespace
}  // namespace inferscale::testing
