// Gate E5 and every fallback of the engine: whatever is wrong with a record, the state or the
// RopeSpec, the text's own answer comes out, and the reason is counted.

#include <gmock/gmock.h>

#include "equivalence/engine_fixture.h"
#include "inferscale/kv_store.h"

namespace inferscale::testing {
namespace {

using ::testing::HasSubstr;

using EngineFallback = EngineFixture;

std::shared_ptr<const Record> copy_with(const Record& record, const RecordMeta& meta,
                                        std::span<const TokenId> tokens) {
  RecordBuilder builder = RecordBuilder::create(meta, tokens).value();
  const std::size_t row = meta.shape.k_elements() * codec_element_bytes(meta.codec);
  for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
    std::copy_n(record.layer_k(layer), tokens.size() * row, builder.layer_k(layer));
    std::copy_n(record.layer_v(layer), tokens.size() * row, builder.layer_v(layer));
  }
  return std::move(builder).seal();
}

TEST_F(EngineFallback, RecordsThatDoNotMatchGoAsText) {
  const RunResult text = run(ask());
  const RunRequest good = ask_injected();
  const Record& record = *good.plan[2].lease.record();
  RecordMeta other_model = record.meta();
  other_model.model_fingerprint.bytes[0] ^= std::byte{1};
  std::vector<TokenId> other_tokens(record.token_ids().begin(), record.token_ids().end());
  other_tokens[4] ^= 1;
  const std::pair<Lease, const char*> wrong[] = {
      {Lease(copy_with(record, other_model, record.token_ids())),
       "wrong_fingerprint=1 behind_text=2 "},
      {Lease(copy_with(record, record.meta(), other_tokens)), "wrong_tokens=1 behind_text=2 "},
      {Lease(MissReason::kChecksum), "behind_text=2 "},
      {Lease(), "behind_text=2 "},
  };
  for (const auto& [lease, reason] : wrong) {
    RunRequest request = good;
    request.plan[2].lease = lease;
    const RunResult result = run(request);
    EXPECT_EQ(result.tokens, text.tokens) << reason;
    EXPECT_EQ(fallbacks(result), reason);
    EXPECT_EQ(result.tokens_injected, segments_[0].size() + segments_[1].size());
  }
}

TEST_F(EngineFallback, AMissingFirstRecordCostsItsOwnTokensOnly) {
  const RunResult text = run(ask());
  RunRequest request = ask_injected();
  request.plan[0].lease = Lease(MissReason::kEvicted);
  const RunResult result = run(request);
  EXPECT_EQ(result.tokens, text.tokens);
  EXPECT_EQ(fallbacks(result), "");
  EXPECT_EQ(result.tokens_prefilled, segments_[0].size() + question_.size());
}

/// One segment's record in a store, asked for with `change` applied.
class EngineStoreFallback : public EngineFallback {
 protected:
  void check(const char* reason, const std::function<void(RecordRequest&)>& change) {
    const RunResult text = run(ask());
    RunRequest request = ask_injected();
    const auto record = records()[1];
    KvStoreOptions options;
    options.disk_budget_bytes = 0;
    const auto store = KvStore::open(options).value();
    const RecordKey key = make_record_key({}, record->meta(), record->token_ids());
    ASSERT_TRUE(store->put(key, record).ok());
    RecordRequest wanted{
        key,          record->meta().model_fingerprint, record->meta().shape, record->meta().scope,
        segments_[1], record->meta().context_id};
    change(wanted);
    std::vector<Lease> leases = store->acquire({&wanted, 1});
    EXPECT_STREQ(miss_reason_name(leases.at(0).reason()), reason);
    request.plan[1].lease = leases[0];
    const RunResult result = run(request);
    EXPECT_EQ(result.tokens, text.tokens);
    EXPECT_FALSE(result.segment_injected[1]);
    EXPECT_EQ(fallbacks(result), "behind_text=3 ");
  }
};

TEST_F(EngineStoreFallback, E5WrongModelContextScopeTokensOrBytes) {
  check("wrong_fingerprint",
        [](RecordRequest& wanted) { wanted.model_fingerprint.bytes[5] ^= std::byte{4}; });
  check("wrong_context", [](RecordRequest& wanted) { wanted.context_id.bytes[5] ^= std::byte{4}; });
  check("wrong_scope", [](RecordRequest& wanted) { wanted.scope.bytes[5] ^= std::byte{4}; });
  check("wrong_tokens", [&](RecordRequest& wanted) { wanted.token_ids = segments_[2]; });
  check("record_missing", [](RecordRequest& wanted) { wanted.key.value.bytes[0] ^= std::byte{1}; });
}

TEST_F(EngineFallback, E5OneFlippedBitOfARecordIsNeverARecord) {
  const auto record = records()[1];
  const std::vector<std::byte> good(record->bytes().begin(), record->bytes().end());
  // Every byte of the header, and a sample of the payload.
  for (std::size_t at = 0; at < good.size(); at += at < 256 ? 1 : 977) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_FALSE(Record::parse(bad).ok()) << "byte " << at;
  }
  EXPECT_TRUE(Record::parse(good).ok());
}

TEST_F(EngineFallback, AStateThatLibllamaRejectsIsPrefilled) {
  const RunResult text = run(ask());
  const RunRequest request = ask_injected();
  hooks_->reject_states = 1;
  const RunResult rejected = run(request);
  EXPECT_EQ(rejected.tokens, text.tokens);
  EXPECT_EQ(fallbacks(rejected), "state_rejected=5 ");
  EXPECT_EQ(rejected.tokens_injected, 0U);
  EXPECT_EQ(rejected.tokens_prefilled, plan_size() + question_.size());
  const RunResult next = run(request);
  EXPECT_EQ(next.tokens, text.tokens);
  EXPECT_EQ(next.tokens_injected, plan_size());
}

TEST_F(EngineFallback, ARejectedStateInASessionStartsTheSessionAgain) {
  const RunResult text = run(ask());
  RunRequest request = ask_injected();
  RunRequest start = ask(0);
  start.plan.resize(2);
  start.branches[0].tokens.clear();
  start.session = request.session = "s";
  run(start);
  RunRequest bystander = ask(0);
  bystander.session = "other";
  run(bystander);
  hooks_->reject_states = 1;
  const RunResult rejected = run(request);
  EXPECT_EQ(rejected.tokens, text.tokens);
  EXPECT_EQ(fallbacks(rejected), "state_rejected=3 ");
  EXPECT_EQ(rejected.tokens_reused, 0U);
  EXPECT_EQ(run(bystander).tokens_reused, plan_size() + question_.size());
  EXPECT_EQ(run(request).tokens, text.tokens);
}

/// An engine whose self-test must fail.
class EngineSelfTest : public EngineFallback {
 protected:
  void expect_text_only(std::shared_ptr<LlamaEngineHooks> hooks, const char* word) {
    const RunResult text = run(ask());
    RunRequest request = ask_injected();
    request.branches[0].captures = {{0, 5, meta()}};
    const auto broken = open(std::move(hooks));
    ASSERT_NE(broken, nullptr);
    EXPECT_FALSE(broken->info().injection);
    EXPECT_THAT(broken->info().injection_off_reason, HasSubstr(word));
    const RunResult result = run(*broken, request);
    EXPECT_EQ(result.tokens, text.tokens);
    EXPECT_EQ(result.tokens_injected, 0U);
    EXPECT_EQ(fallbacks(result), "injection_off=5 capture_off=1 ");
    ASSERT_EQ(result.branches[0].records.size(), 1U);
    EXPECT_EQ(result.branches[0].records[0], nullptr);
  }
};

TEST_F(EngineSelfTest, AnUnknownStateLayoutSwitchesInjectionOff) {
  auto hooks = std::make_shared<LlamaEngineHooks>();
  hooks->state_form = StateForm::kWithRotationWords;
  expect_text_only(hooks, "no known form");
}

TEST_F(EngineSelfTest, AWrongRopeBaseSwitchesInjectionOff) {
  auto hooks = std::make_shared<LlamaEngineHooks>();
  hooks->rope = engine_->info().model.rope;
  hooks->rope->freq_base *= 1.05;
  expect_text_only(hooks, "RopeSpec");
}

TEST_F(EngineSelfTest, TheRightEnginePasses) {
  EXPECT_TRUE(engine_->info().injection) << engine_->info().injection_off_reason;
  EXPECT_EQ(engine_->info().injection_off_reason, "");
}

TEST_F(EngineSelfTest, WithoutItAWrongRopeSpecWouldGoUnnoticed) {
  // Why the self-test is there: the records of such an engine look right, and move facts wrongly.
  auto hooks = std::make_shared<LlamaEngineHooks>();
  hooks->rope = engine_->info().model.rope;
  hooks->rope->freq_base *= 2;
  LlamaEngineOptions blind = options();
  blind.self_test = false;
  const auto broken = open_llama_engine_with_hooks(blind, hooks).value();
  EXPECT_TRUE(broken->info().injection);
  RunRequest capture = ask(0);
  capture.branches[0].captures = {{0, plan_size(), meta()}};
  const auto whole = run(*broken, capture).branches[0].records[0];
  // Behind one more segment, where the same tokens now stand 20 positions later.
  RunRequest moved;
  moved.plan = {{segments_[0], Lease()},
                {{whole->token_ids().begin(), whole->token_ids().end()}, Lease(whole)}};
  moved.branches = {
      {question_, {}, {plan_size() + static_cast<std::uint32_t>(segments_[0].size())}}};
  const RunResult wrong = run(*broken, moved);
  const RunResult right = run(*engine_, moved);
  EXPECT_GT(max_difference({wrong.branches[0].scores[0].log_probs},
                           {right.branches[0].scores[0].log_probs}),
            0.5);
}

class EveryFamily : public ::testing::TestWithParam<NamedModelOptions> {};

TEST_P(EveryFamily, SelfTestPassesAndNoticesEveryRopeError) {
  TempDirectory directory;
  const auto path = directory / "model.gguf";
  ASSERT_TRUE(write_random_model(path, GetParam().options).ok());
  for (const KvCodec cache : {KvCodec::kF16, KvCodec::kF32}) {
    LlamaEngineOptions options;
    options.model = path;
    options.cache_dtype = cache;
    options.threads = 1;
    const auto engine = open_llama_engine(options).value();
    EXPECT_TRUE(engine->info().injection) << engine->info().injection_off_reason;
    const RopeSpec right = engine->info().model.rope;
    std::vector<RopeSpec> wrong(2, right);
    wrong[0].freq_base *= 1.02;
    wrong[1].pairing =
        right.pairing == RopePairing::kHalves ? RopePairing::kAdjacent : RopePairing::kHalves;
    if (right.scaling != RopeScaling::kNone) {
      wrong.push_back(right);
      wrong.back().scaling = RopeScaling::kNone;
      wrong.back().scaling_factor = 1;
      wrong.back().freq_factors.clear();
    }
    if (!right.freq_factors.empty()) {
      wrong.push_back(right);
      wrong.back().freq_factors.back() *= 2;  // the slowest pair only
    }
    if (right.scaling == RopeScaling::kYarn || right.scaling == RopeScaling::kLinear) {
      wrong.push_back(right);
      wrong.back().scaling_factor *= 1.1;
    }
    for (std::size_t i = 0; i < wrong.size(); ++i) {
      auto hooks = std::make_shared<LlamaEngineHooks>();
      hooks->rope = wrong[i];
      const auto broken = open_llama_engine_with_hooks(options, hooks);
      ASSERT_TRUE(broken.ok()) << "error " << i << ": " << broken.status().to_string();
      EXPECT_FALSE((*broken)->info().injection) << "error " << i << " was not noticed";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, EveryFamily, ::testing::ValuesIn(all_random_models()),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(Outliers, EveryFamily, ::testing::Values(outlier_model(200)),
                         [](const auto& param) { return param.param.name; });

TEST_F(EngineFallback, WhatCannotBeServedIsRefusedBeforeLoading) {
  LlamaEngineOptions bad = options();
  bad.model = directory_ / "none.gguf";
  EXPECT_EQ(open_llama_engine(bad).status().code(), StatusCode::kNotFound);
  bad = options();
  bad.context_tokens = 513;
  EXPECT_EQ(open_llama_engine(bad).status().code(), StatusCode::kInvalidArgument);
  bad = options();
  bad.max_branches = 0;
  EXPECT_EQ(open_llama_engine(bad).status().code(), StatusCode::kInvalidArgument);
  bad = options();
  bad.model = directory_ / "short.gguf";
  std::filesystem::copy_file(path_, bad.model);
  std::filesystem::resize_file(bad.model, std::filesystem::file_size(path_) - 1000);
  EXPECT_EQ(open_llama_engine(bad).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace inferscale::testing
