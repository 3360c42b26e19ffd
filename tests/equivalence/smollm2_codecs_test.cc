// What records in a scaled codec cost, in the engine on SmolLM2-135M with f32 weights and an f16
// cache: the same facts from f16 records and from scaled ones, in another order than they were
// encoded in. The figures of docs/accuracy.md; `--gtest_output=xml` has them as properties.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "engine/llama/llama_engine.h"
#include "equivalence/llama_rig.h"

namespace inferscale::testing {
namespace {

const std::vector<std::string> kFacts = {
    "2023-05-08: Anna adopted a grey cat and named it Pixel.\n",
    "2023-05-11: Carla sold her blue car to a neighbour for 900 euros.\n",
    "2023-05-20: Ben is allergic to peanuts and always carries his medicine.\n",
    "2023-06-01: Ben moved to Lisbon to work in a bakery.\n",
    "2023-06-09: Anna began to learn the cello.\n",
    "2023-06-15: Carla's sister Dora lives in Graz and is a dentist.\n",
    "2023-07-02: Anna and Ben went hiking in the Dolomites for a week.\n",
    "2023-07-19: Ben bought a second-hand motorcycle and painted it green.\n",
    "2023-08-03: Carla started to train for the marathon in Vienna.\n",
    "2023-08-21: Anna's cat broke a vase that her grandmother had given her.\n",
    "2023-09-05: Dora opened a practice of her own near the station.\n",
    "2023-09-30: Ben wants to open a bakery with his cousin next spring.\n",
};
const std::vector<std::string> kQuestions = {
    "What is the name of Anna's cat?", "Where does Ben work, and since when?",
    "What is Carla training for?",     "What does Dora do for a living?",
    "What is Ben allergic to?",
};

struct Costs {
  double first = 0;   // KL of the first answer token against f16 records, mean over questions
  double answer = 0;  // along the answer that f16 records give
  double most = 0;    // the largest of a question's
};

class SmolLm2Codecs : public ::testing::Test {
 protected:
  static constexpr KvCodec kCodecs[] = {KvCodec::kF16, KvCodec::kQ8, KvCodec::kFp8E4m3,
                                        KvCodec::kQ4};

  void SetUp() override {
    LlamaEngineOptions options;
    options.model = packaged_model_f32();
    options.context_tokens = 1024;
    options.threads = 1;
    Result<std::unique_ptr<Engine>> engine = open_llama_engine(options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
    ASSERT_TRUE(engine_->info().injection) << engine_->info().injection_off_reason;
    encode();
  }

  std::vector<TokenId> tokens(const std::string& text, bool special) {
    return engine_->tokenizer().encode(text, special).value();
  }
  std::string prompt(const std::string& question) {
    return engine_->chat_format()
        .render({{"system", "Be brief."}, {"user", "Facts:\n@Question: " + question}}, true)
        .value();
  }
  RunResult run(const RunRequest& request) {
    Result<RunResult> result = engine_->run(request);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return result.ok() ? std::move(result).value() : RunResult{};
  }

  // Header and facts are prefilled once, as one text; every range is captured in every codec.
  void encode() {
    const std::string text = prompt("");
    RunRequest fill;
    fill.plan.push_back({tokens(text.substr(0, text.find('@')), true), Lease()});
    for (const std::string& fact : kFacts) {
      fill.plan.push_back({tokens(fact, false), Lease()});
    }
    fill.branches.resize(1);
    fill.branches[0].tokens = tokens("\n", false);
    for (const KvCodec codec : kCodecs) {
      RecordMeta meta;
      meta.model_fingerprint = engine_->info().model.fingerprint;
      meta.shape = engine_->info().model.shape;
      std::uint32_t begin = 0;
      for (const Segment& segment : fill.plan) {
        const auto end = begin + static_cast<std::uint32_t>(segment.tokens.size());
        meta.context_kind = begin == 0 ? ContextKind::kPrefix : ContextKind::kHeader;
        meta.codec = codec_for_context(codec, meta.context_kind);
        fill.branches[0].captures.push_back({begin, end, meta});
        begin = end;
      }
    }
    const RunResult filled = run(fill);
    const auto& records = filled.branches.at(0).records;
    ASSERT_EQ(records.size(), std::size(kCodecs) * fill.plan.size());
    for (std::size_t i = 0; i < records.size(); ++i) {
      ASSERT_NE(records[i], nullptr);
      plans_[kCodecs[i / fill.plan.size()]].push_back(
          {fill.plan[i % fill.plan.size()].tokens, Lease(records[i])});
    }
    for (auto& [codec, plan] : plans_) {
      std::reverse(plan.begin() + 1, plan.end());
    }
  }

  // The question behind records of a codec; `answer` is scored, or generated where it is empty.
  RunResult ask(KvCodec codec, const std::string& question, const std::vector<TokenId>& answer) {
    const std::string text = prompt(question);
    RunRequest request;
    request.plan = plans_.at(codec);
    request.branches.resize(1);
    Branch& branch = request.branches[0];
    branch.tokens = tokens(text.substr(text.find('@') + 1), true);
    std::uint32_t size = 0;
    for (const Segment& segment : request.plan) {
      size += static_cast<std::uint32_t>(segment.tokens.size());
    }
    const auto asked = size + static_cast<std::uint32_t>(branch.tokens.size());
    for (std::uint32_t i = 0; i < answer.size(); ++i) {
      branch.score_positions.push_back(asked - 1 + i);
    }
    branch.tokens.insert(branch.tokens.end(), answer.begin(), answer.end());
    request.sampling.max_tokens = answer.empty() ? 16 : 0;
    RunResult result = run(request);
    EXPECT_EQ(result.tokens_injected, size);
    return result;
  }

  Costs measure(KvCodec codec) {
    Costs costs;
    const auto n = static_cast<double>(kQuestions.size());
    for (const std::string& question : kQuestions) {
      const std::vector<TokenId> answer = ask(KvCodec::kF16, question, {}).tokens;
      const RunResult wide = ask(KvCodec::kF16, question, answer);
      const RunResult narrow = ask(codec, question, answer);
      LogitRows a;
      LogitRows b;
      for (std::size_t i = 0; i < answer.size(); ++i) {
        a.push_back(wide.branches[0].scores.at(i).log_probs);
        b.push_back(narrow.branches[0].scores.at(i).log_probs);
      }
      const double along = mean_kl(a, b);
      costs.first += mean_kl({a.front()}, {b.front()}) / n;
      costs.answer += along / n;
      costs.most = std::max(costs.most, along);
    }
    const std::string name = codec_name(codec);
    RecordProperty(name + "_kl_first", std::to_string(costs.first));
    RecordProperty(name + "_kl_answer", std::to_string(costs.answer));
    RecordProperty(name + "_kl_answer_most", std::to_string(costs.most));
    return costs;
  }

  std::map<KvCodec, std::vector<Segment>> plans_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(SmolLm2Codecs, CostWhatIsDocumented) {
  const KvShape shape = engine_->info().model.shape;
  EXPECT_EQ(kv_token_bytes(shape, KvCodec::kF16), 23040U);
  EXPECT_EQ(kv_token_bytes(shape, KvCodec::kQ8), 12240U);
  EXPECT_EQ(kv_token_bytes(shape, KvCodec::kFp8E4m3), 12240U);
  const Costs itself = measure(KvCodec::kF16);
  EXPECT_LE(itself.answer, 1e-9) << "the same records give the same distributions";
  EXPECT_EQ(kv_token_bytes(shape, KvCodec::kQ4), 6480U);
  const Costs q8 = measure(KvCodec::kQ8);
  const Costs fp8 = measure(KvCodec::kFp8E4m3);
  EXPECT_LE(q8.first, 0.002);
  EXPECT_LE(q8.answer, 0.002);
  EXPECT_LE(fp8.first, 0.01);
  EXPECT_LE(fp8.answer, 0.01);
  EXPECT_GT(fp8.answer, q8.answer) << "8 bits of fp8 have less precision";
  EXPECT_GT(q8.answer, 0) << "was it quantised at all?";
  const Costs q4 = measure(KvCodec::kQ4);
  EXPECT_LE(q4.first, 0.02);
  EXPECT_LE(q4.answer, 0.014);
  EXPECT_GT(q4.answer, fp8.answer);
}

}  // namespace
}  // namespace inferscale::testing
