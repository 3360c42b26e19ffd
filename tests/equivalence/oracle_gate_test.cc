// Gate E3: facts that were encoded apart, each behind the same header, and composed in any order,
// give the logits of a plain fp64 forward pass in which each fact is computed behind its header at
// its encode positions and its keys are then rotated to the composed positions.

#include <gtest/gtest.h>

#include <numeric>

#include "equivalence/gate_cases.h"
#include "support/oracle_model.h"
#include "support/random_model.h"

namespace inferscale::testing {
namespace {

// All at least 64 tokens: below, ggml's flash attention adds up in f16, and its noise covers ours.
constexpr std::uint32_t kHeader = 65;
constexpr std::size_t kQuestion = 66;
const std::vector<std::size_t> kFactSizes = {73, 64, 67};
// Facts' logits, up to about ±30, differ from the oracle's by libllama's own fp32 and f16 rounding.
constexpr double kLimit = 0.05;

std::vector<std::int32_t> positions_from(std::uint32_t first, std::size_t count) {
  std::vector<std::int32_t> positions(count);
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first));
  return positions;
}

LogitRows to_float(const std::vector<Vector>& rows) {
  LogitRows result;
  for (const Vector& row : rows) {
    result.emplace_back(row.begin(), row.end());
  }
  return result;
}

class OracleGate : public ::testing::TestWithParam<NamedModelOptions> {
 protected:
  void SetUp() override {
    path_ = directory_ / "model.gguf";
    ASSERT_TRUE(write_random_model(path_, GetParam().options).ok());
    oracle_ = std::make_unique<OracleModel>(OracleModel::load(path_).value());
    oracle_->set_f16_attention(true);  // as flash attention does, also over an f32 cache
    const std::uint32_t vocab = oracle_->spec().vocab_size;
    header_ = random_tokens(kHeader, vocab, 5);
    question_ = random_tokens(kQuestion, vocab, 6);
    for (std::size_t i = 0; i < kFactSizes.size(); ++i) {
      facts_.push_back(random_tokens(kFactSizes[i], vocab, static_cast<std::uint32_t>(10 + i)));
    }
    header_kv_ = oracle_->forward(header_, positions_from(0, kHeader), {}).kv;
    for (const std::vector<TokenId>& fact : facts_) {
      fact_kv_.push_back(
          oracle_->forward(fact, positions_from(kHeader, fact.size()), header_kv_).kv);
    }
  }

  [[nodiscard]] std::uint32_t composed_size() const {
    return kHeader + static_cast<std::uint32_t>(
                         std::accumulate(kFactSizes.begin(), kFactSizes.end(), std::size_t{0}));
  }

  /// The question's logits behind header and facts in `order`, all starting at `base`.
  LogitRows by_oracle(const std::vector<std::size_t>& order, std::uint32_t base) const {
    OracleKv past = header_kv_.slice(0, kHeader, static_cast<std::int32_t>(base));
    std::uint32_t position = base + kHeader;
    for (const std::size_t i : order) {
      past.append(fact_kv_[i].slice(0, facts_[i].size(), static_cast<std::int32_t>(position)));
      position += static_cast<std::uint32_t>(facts_[i].size());
    }
    return to_float(oracle_->forward(question_, positions_from(position, kQuestion), past).logits);
  }

  void encode(LlamaRig& rig, KvCodec store) {
    records_.clear();
    for (const std::vector<TokenId>& fact : facts_) {
      rig.clear();
      rig.decode(header_, 0, 1);
      rig.decode(fact, kHeader, 1);
      records_.push_back(rig.capture(fact, kHeader, store));
    }
    header_record_ = rig.capture(header_, 0, store);
  }

  LogitRows by_injection(LlamaRig& rig, const std::vector<std::size_t>& order,
                         std::uint32_t base) const {
    std::vector<Placed> placed = {{header_record_, base}};
    std::uint32_t position = base + kHeader;
    for (const std::size_t i : order) {
      placed.push_back({records_[i], position});
      position += records_[i]->n_tokens();
    }
    rig.clear();
    rig.inject(placed);
    return rig.decode(question_, position, kQuestion);
  }

  TempDirectory directory_;
  std::filesystem::path path_;
  std::unique_ptr<OracleModel> oracle_;
  std::vector<TokenId> header_;
  std::vector<TokenId> question_;
  std::vector<std::vector<TokenId>> facts_;
  OracleKv header_kv_;
  std::vector<OracleKv> fact_kv_;
  std::shared_ptr<const Record> header_record_;
  std::vector<std::shared_ptr<const Record>> records_;
};

TEST_P(OracleGate, E3ComposedInTwoOrders) {
  const std::vector<std::size_t> forward = {0, 1, 2};
  const std::vector<std::size_t> other = {2, 0, 1};
  const std::uint32_t last =
      oracle_->spec().trained_positions - composed_size() - static_cast<std::uint32_t>(kQuestion);
  for (const auto& [cache, store] :
       {std::pair{KvCodec::kF32, KvCodec::kF32}, {KvCodec::kF16, KvCodec::kF16}}) {
    LlamaRig rig({.model = path_, .cache_dtype = cache});
    encode(rig, store);
    for (const std::uint32_t base : {0U, 1U, last}) {
      const LogitRows expected = by_oracle(forward, base);
      const LogitRows expected_other = by_oracle(other, base);
      const LogitRows composed = by_injection(rig, forward, base);
      EXPECT_LE(max_difference(expected, composed), kLimit) << "at " << base;
      EXPECT_LE(max_difference(expected_other, by_injection(rig, other, base)), kLimit)
          << "at " << base;
      // The gate can fail: another order is another prompt.
      EXPECT_GT(max_difference(expected_other, composed), 10 * kLimit);
    }
  }
}

TEST_P(OracleGate, FactsEncodedApartAreNotOnePrefill) {
  // What E3 compares with really is the approximation, not a joint prefill of all facts.
  LlamaRig rig({.model = path_});
  std::vector<TokenId> all = header_;
  for (const std::vector<TokenId>& fact : facts_) {
    all.insert(all.end(), fact.begin(), fact.end());
  }
  rig.decode(all, 0, 1);
  const LogitRows joint = rig.decode(question_, composed_size(), kQuestion);
  EXPECT_GT(max_difference(joint, by_oracle({0, 1, 2}, 0)), 10 * kLimit);
}

INSTANTIATE_TEST_SUITE_P(Families, OracleGate, ::testing::ValuesIn(all_random_models()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace inferscale::testing
