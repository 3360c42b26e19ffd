// Gates E1 and E2 of the design for every supported family and rope scaling, on small random models
// with f32 weights: what is captured from one prefill and injected again, at the same or at other
// positions, gives that prefill's logits.

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "equivalence/gate_cases.h"
#include "support/random_model.h"

namespace inferscale::testing {
namespace {

constexpr std::size_t kContext = 100;
// At least 64 queries: below, ggml's flash attention adds up in f16, and its noise covers ours.
constexpr std::size_t kQuestion = 66;

/// Files of all models, written once per test program.
const std::filesystem::path& model_path(const NamedModelOptions& model) {
  static TempDirectory directory;
  static std::map<std::string, std::filesystem::path> paths;
  std::filesystem::path& path = paths[model.name];
  if (path.empty()) {
    path = directory / (model.name + ".gguf");
    EXPECT_TRUE(write_random_model(path, model.options).ok());
  }
  return path;
}

using Param = std::tuple<NamedModelOptions, CacheAndStore>;

class RandomGates : public ::testing::TestWithParam<Param> {
 protected:
  [[nodiscard]] const NamedModelOptions& model() const { return std::get<0>(GetParam()); }
  [[nodiscard]] const CacheAndStore& setting() const { return std::get<1>(GetParam()); }
  LlamaRig make_rig(std::optional<RopeSpec> rope = std::nullopt) const {
    return LlamaRig(
        {.model = model_path(model()), .cache_dtype = setting().cache, .rope = std::move(rope)});
  }
  /// Near the start, and so that the last generated token stands at the last trained position.
  static std::vector<std::uint32_t> starts(const LlamaRig& rig, const JointContext& context) {
    return {1, rig.spec().trained_positions - context.size()};
  }
};

TEST_P(RandomGates, E1SamePositions) {
  LlamaRig rig = make_rig();
  JointContext context(rig, kContext, kQuestion);
  for (const std::uint32_t start : starts(rig, context)) {
    context.prefill(start, setting().store);
    const GateFigures figures = context.inject(start);
    EXPECT_LE(figures.difference, setting().limits.e1_difference) << "at " << start;
    EXPECT_LE(figures.kl, setting().limits.e1_kl) << "at " << start;
    EXPECT_TRUE(figures.same_greedy || setting().store != KvCodec::kF32) << "at " << start;
    if (setting().cache == KvCodec::kF16 && setting().store == KvCodec::kF32) {
      EXPECT_LE(figures.changed, 1e-4) << "at " << start;
      // Equal but for the few elements that were rounded the other way.
      EXPECT_LE(figures.difference, figures.changed == 0 ? 0 : 1e-3) << "at " << start;
    }
    // The gate can fail: keys one position off are far outside.
    EXPECT_GT(context.inject(start, 1).difference, 10 * setting().limits.e1_difference);
  }
}

TEST_P(RandomGates, E2Relocation) {
  LlamaRig rig = make_rig();
  JointContext context(rig, kContext, kQuestion);
  const std::vector<std::uint32_t> places = starts(rig, context);
  for (const auto& [from, to] :
       {std::pair{places[0], places[1]}, {places[1], places[0]}, {places[0], 7U}}) {
    context.prefill(from, setting().store);
    const GateFigures figures = context.inject(to);
    EXPECT_LE(figures.difference, setting().limits.e2_difference) << from << " to " << to;
    EXPECT_LE(figures.kl, 1e-4) << from << " to " << to;
  }
}

TEST_P(RandomGates, E2NoticesAWrongRopeSpec) {
  RopeSpec wrong = make_rig().spec().rope;
  std::vector<RopeSpec> specs(2, wrong);
  specs[0].freq_base *= 2;
  specs[1].pairing =
      wrong.pairing == RopePairing::kHalves ? RopePairing::kAdjacent : RopePairing::kHalves;
  if (!wrong.freq_factors.empty()) {
    specs.push_back(wrong);
    specs.back().freq_factors.clear();
    specs.back().scaling = RopeScaling::kNone;
  } else if (wrong.scaling != RopeScaling::kNone) {
    specs.push_back(wrong);
    specs.back().scaling_factor *= 2;
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    LlamaRig rig = make_rig(specs[i]);
    JointContext context(rig, kContext, kQuestion);
    context.prefill(1, setting().store);
    // At the same positions a wrong table undoes itself; that is why this gate is needed.
    EXPECT_LE(context.inject(1).difference, 0.1) << "spec " << i;
    EXPECT_GT(context.inject(starts(rig, context)[1]).difference, 0.3) << "spec " << i;
  }
}

// A codec with one scale for a head: what it costs is decided by the keys without their bias.
TEST(KeyBiasGate, OutliersCostAScaledCodecNothing) {
  NamedModelOptions model = outlier_model(200);
  model.name += "_of_200";
  for (const KvCodec codec : {KvCodec::kQ8, KvCodec::kFp8E4m3}) {
    double kl[2] = {};
    for (const bool without : {false, true}) {
      LlamaRig rig({.model = model_path(model), .key_bias = without});
      EXPECT_FALSE(rig.spec().key_bias.empty());
      JointContext context(rig, kContext, kQuestion);
      context.prefill(1, codec);
      kl[without ? 1 : 0] = context.inject(1).kl;
    }
    EXPECT_LT(kl[1], 0.1 * kl[0]) << "codec " << static_cast<int>(codec);
    EXPECT_LT(kl[1], codec == KvCodec::kQ8 ? 1e-2 : 1e-1);
  }
}

std::string param_name(const ::testing::TestParamInfo<Param>& param) {
  const CacheAndStore& setting = std::get<1>(param.param);
  return std::get<0>(param.param).name + "_cache_f" +
         std::to_string(8 * codec_element_bytes(setting.cache)) + "_store_f" +
         std::to_string(8 * codec_element_bytes(setting.store));
}

INSTANTIATE_TEST_SUITE_P(Families, RandomGates,
                         ::testing::Combine(::testing::ValuesIn(all_random_models()),
                                            ::testing::ValuesIn(gate_settings())),
                         param_name);

}  // namespace
}  // namespace inferscale::testing
