// The parts of an evaluation that need no model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "cli/eval/arm.h"
#include "cli/eval/estimate.h"
#include "cli/eval/locomo_set.h"
#include "cli/eval/metrics.h"
#include "cli/eval/prompt_facts.h"
#include "cli/eval/record_edit.h"
#include "cli/eval/result_log.h"
#include "cli/eval/row_profile.h"
#include "kernels/transcode.h"

namespace inferscale::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<float> log_of(const std::vector<double>& probabilities) {
  std::vector<float> logs;
  for (const double p : probabilities) {
    logs.push_back(static_cast<float>(std::log(p)));
  }
  return logs;
}

TEST(EvalMetricsTest, PathsAreComparedPlaceByPlace) {
  const LogProbs text = {log_of({0.5, 0.25, 0.25}), log_of({0.1, 0.8, 0.1}),
                         log_of({0.2, 0.2, 0.6})};
  const LogProbs arm = {log_of({0.25, 0.5, 0.25}), log_of({0.1, 0.8, 0.1}),
                        log_of({0.6, 0.2, 0.2})};
  const PathComparison comparison = compare_paths(text, arm);
  const double first = 0.5 * std::log(2.0) + 0.25 * std::log(0.5);
  const double last = 0.2 * std::log(0.2 / 0.6) + 0.6 * std::log(0.6 / 0.2);
  EXPECT_NEAR(comparison.kl_first, first, 1e-6);
  EXPECT_NEAR(comparison.kl_mean, (first + last) / 3, 1e-6);
  EXPECT_NEAR(comparison.top1, 1.0 / 3, 1e-12);
  EXPECT_EQ(comparison.first_divergence, 0);
  const PathComparison same = compare_paths(text, text);
  EXPECT_EQ(same.kl_mean, 0);
  EXPECT_NEAR(same.top1, 1, 1e-12);
  EXPECT_EQ(same.first_divergence, 3);
}

TEST(EvalMetricsTest, NllIsTheMeanOverThePath) {
  const LogProbs arm = {log_of({0.25, 0.5, 0.25}), log_of({0.1, 0.8, 0.1})};
  EXPECT_NEAR(mean_nll(arm, std::vector<TokenId>{1, 0}), -(std::log(0.5) + std::log(0.1)) / 2,
              1e-6);
}

TEST(EvalMetricsTest, WordF1FoldsCasePunctuationAndArticles) {
  EXPECT_EQ(word_f1("The Blue bowl.", "a blue bowl"), 1);
  EXPECT_NEAR(word_f1("a blue bowl and a red one", "blue bowl"), 2.0 * 2 / (5 + 2), 1e-12);
  EXPECT_EQ(word_f1("green", "blue"), 0);
  EXPECT_EQ(word_f1("", "blue"), 0);
  EXPECT_EQ(word_f1("the", ""), 1);
  EXPECT_NEAR(word_f1("blue blue", "blue"), 2.0 / 3, 1e-12) << "a word counts once for each time";
}

TEST(EvalArmTest, IsWrittenAsItIsRead) {
  const auto arm = parse_arm("window:8+scale=0.9@4");
  ASSERT_TRUE(arm.ok()) << arm.status().to_string();
  EXPECT_EQ(arm->name(50), "window:8+scale=0.9 top_j=4 k=50");
  EXPECT_EQ(parse_arm("header")->name(5), "header top_j=0 k=5");
  EXPECT_EQ(parse_arm("header+joint_first=1")->cure, Cure::kJointFirst);
}

TEST(EvalArmTest, WhatIsWrongIsNamed) {
  for (const auto& [text, expected] :
       std::vector<std::pair<std::string, std::string>>{{"", "encode context"},
                                                        {"windows:8", "encode context"},
                                                        {"header@", "top_j"},
                                                        {"header@65", "top_j"},
                                                        {"header@4x", "top_j"},
                                                        {"header+", "scale="},
                                                        {"header+first", "first"},
                                                        {"header+first=0", "first=1 to 64"},
                                                        {"header+first=1.5", "first"},
                                                        {"header+scale=9", "scale=0.5 to 2"},
                                                        {"header+scale=nan", "scale"},
                                                        {"header,header", "given twice"},
                                                        {"header,", "encode context"}}) {
    const auto arms = parse_arms(text);
    ASSERT_FALSE(arms.ok()) << text;
    EXPECT_EQ(arms.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(arms.status().message(), HasSubstr(expected)) << text;
  }
}

TEST(EvalEstimateTest, TheIntervalIsOverCasesNotQuestions) {
  // Two conversations that differ, many questions that do not: the interval must show the former.
  const std::vector<std::vector<double>> cases = {std::vector<double>(100, 0.0),
                                                  std::vector<double>(100, 1.0)};
  const Estimate estimate = estimate_mean(cases, 1);
  EXPECT_EQ(estimate.mean, 0.5);
  EXPECT_EQ(estimate.low, 0);
  EXPECT_EQ(estimate.high, 1);
  const Estimate one_case = estimate_mean({{0, 1, 0, 1, 0, 1, 0, 1}}, 1);
  EXPECT_EQ(one_case.mean, 0.5);
  EXPECT_GT(one_case.low, 0.05);
  EXPECT_LT(one_case.high, 0.95);
  EXPECT_EQ(estimate_mean({}, 1).mean, 0);
  EXPECT_EQ(estimate_mean({{}, {3}}, 1).mean, 3);
}

TEST(EvalEstimateTest, SignsThatAreAllEqualAreUnlikely) {
  EXPECT_LT(sign_flip_p(std::vector<double>(20, 0.5), 1), 0.01);
  EXPECT_GT(sign_flip_p({1, -1, 1, -1, 1, -1}, 1), 0.9);
  EXPECT_EQ(sign_flip_p({}, 1), 1);
  EXPECT_EQ(sign_flip_p({0, 0, 0}, 1), 1);
}

TEST(EvalFactsTest, EvidenceTakesThePlaceOfTheLowestRanked) {
  const std::vector<std::size_t> ranked = {7, 3, 9, 1, 5, 0};
  EvalQuestion question;
  EXPECT_THAT(choose_facts(ranked, question, 3), ElementsAre(7, 3, 9));
  question.evidence = {5};
  EXPECT_THAT(choose_facts(ranked, question, 3), ElementsAre(7, 3, 5));
  question.evidence = {3, 0};
  EXPECT_THAT(choose_facts(ranked, question, 3), ElementsAre(7, 3, 0));
  EXPECT_THAT(choose_facts(ranked, question, 1), ElementsAre(3));
  EXPECT_THAT(choose_facts(ranked, question, 99), SizeIs(6));
  EXPECT_EQ(evidence_recall(ranked, question).at("5"), 0.5);
  EXPECT_EQ(evidence_recall(ranked, question).at("10"), 1);
}

TEST(EvalFactsTest, OrdersArePermutations) {
  const std::vector<std::size_t> best_first = {4, 2, 8, 6};
  EXPECT_THAT(order_facts(best_first, FactOrder::kBestLast, 1), ElementsAre(6, 8, 2, 4));
  EXPECT_THAT(order_facts(best_first, FactOrder::kBestFirst, 1), ElementsAre(4, 2, 8, 6));
  const auto shuffled = order_facts(best_first, FactOrder::kShuffled, 1);
  EXPECT_THAT(shuffled, testing::UnorderedElementsAre(4, 2, 8, 6));
  EXPECT_EQ(shuffled, order_facts(best_first, FactOrder::kShuffled, 1));
}

// Two layers, two heads of dim 2; element e of row r of layer l: l + 10 r + e / 8.
RecordPtr numbered_record(std::uint32_t rows, float first_row) {
  RecordMeta meta;
  meta.codec = KvCodec::kF32;
  meta.shape = {2, 2, 2, 2};
  std::vector<TokenId> tokens;
  for (std::uint32_t row = 0; row < rows; ++row) {
    tokens.push_back(static_cast<TokenId>(first_row) + static_cast<TokenId>(row));
  }
  auto builder = RecordBuilder::create(meta, tokens);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    auto* const k = reinterpret_cast<float*>(builder->layer_k(layer));
    auto* const v = reinterpret_cast<float*>(builder->layer_v(layer));
    for (std::uint32_t i = 0; i < rows * 4; ++i) {
      k[i] = static_cast<float>(layer) + 10 * (first_row + static_cast<float>(i / 4)) +
             static_cast<float>(i % 4) / 8;
      v[i] = -k[i];
    }
  }
  return std::move(*builder).seal();
}

TEST(EvalRecordTest, SlicesJoinToTheWhole) {
  const RecordPtr whole = numbered_record(5, 1);
  const auto head = slice_record(*whole, 0, 2);
  const auto tail = slice_record(*whole, 2, 5);
  ASSERT_TRUE(head.ok() && tail.ok());
  EXPECT_THAT((*tail)->token_ids(), ElementsAre(3, 4, 5));
  const auto joined = join_records(std::array{*head, *tail});
  ASSERT_TRUE(joined.ok());
  const RowDistances none = row_distances(*whole, **joined).value();
  for (const auto* const rows : {&none.k, &none.v}) {
    for (const std::vector<double>& layer : *rows) {
      EXPECT_THAT(layer, testing::Each(0.0));
      EXPECT_THAT(layer, SizeIs(5));
    }
  }
}

// Records in q4 are cut and joined as what they stand for.
TEST(EvalRecordTest, RecordsInQ4AreEditedAsFloats) {
  const RecordPtr packed = transcode_record(*numbered_record(5, 1), KvCodec::kQ4).value();
  const auto head = slice_record(*packed, 0, 2);
  const auto tail = slice_record(*packed, 2, 5);
  const auto wide = transcode_record(*packed, KvCodec::kF16);
  ASSERT_TRUE(head.ok() && tail.ok() && wide.ok());
  EXPECT_EQ((*head)->meta().codec, KvCodec::kF32);
  const auto joined = join_records(std::array{*head, *tail});
  const auto twice = join_records(std::array{packed, *head});
  ASSERT_TRUE(joined.ok() && twice.ok());
  EXPECT_EQ((*twice)->n_tokens(), 7U);
  const RowDistances none = row_distances(*packed, **joined).value();
  const RowDistances scaled = row_distances(*packed, **scale_keys(*packed, 0.5F)).value();
  for (const std::vector<double>& layer : none.k) {
    EXPECT_THAT(layer, testing::Each(0.0));
  }
  for (const std::vector<double>& layer : scaled.k) {
    EXPECT_THAT(layer, testing::Each(0.5));
  }
}

TEST(EvalRecordTest, ScalingTouchesKeysOnly) {
  const RecordPtr record = numbered_record(3, 1);
  const auto scaled = scale_keys(*record, 0.75F);
  ASSERT_TRUE(scaled.ok());
  const RowDistances distances = row_distances(*record, **scaled).value();
  EXPECT_NEAR(distances.k[1][2], 0.25, 1e-6);
  EXPECT_EQ(distances.v[1][2], 0);
}

TEST(EvalRecordTest, TheProfileIsAMeanByPosition) {
  RowProfile profile;
  profile.add({{{1, 2}}, {{3, 4}}});
  profile.add({{{3}}, {{5}}});
  std::vector<double> far(RowProfile::kPositions + 4, 0);
  far[RowProfile::kPositions + 1] = 8;
  far[RowProfile::kPositions + 3] = 4;
  profile.add({{far}, {far}});
  const RowDistances mean = profile.mean();
  EXPECT_NEAR(mean.k[0][0], 4.0 / 3, 1e-12);
  EXPECT_EQ(mean.k[0][1], 1);
  EXPECT_EQ(mean.k[0][RowProfile::kPositions], 3) << "the last column holds four tokens";
}

constexpr const char* kConversation = R"([{"sample_id": "conv-1",
 "conversation": {"speaker_a": "Ann", "speaker_b": "Bo", "session_1_date_time": "1:56 pm on 8 May, 2023",
  "session_1": [{"speaker": "Ann", "dia_id": "D1:1", "text": "I bought a red kayak."},
                {"speaker": "Bo", "dia_id": "D1:2", "text": "I have a cat."}]},
 "observation": {"session_1_observation": {"Ann": [["Ann bought a red kayak.", "D1:1"]], "Bo": [["Bo has a cat.", "D1:2"]]}},
 "qa": [{"question": "What did Ann buy?", "answer": "a red kayak", "evidence": ["D1:1"], "category": 4},
        {"question": "What pet has Bo?", "answer": "a cat", "evidence": ["D1:2"], "category": 4},
        {"question": "How many pets?", "answer": 1, "evidence": ["D1:2"], "category": 1},
        {"question": "What did Bo buy?", "adversarial_answer": "a red kayak", "evidence": ["D1:1"], "category": 5},
        {"question": "no answer", "category": 4}, {"category": "x"}, 7]}])";

TEST(LocomoSetTest, QuestionsKnowTheirEvidenceAndWrongAnswers) {
  const auto set = read_locomo_set(kConversation, {});
  ASSERT_TRUE(set.ok()) << set.status().to_string();
  ASSERT_THAT(set->cases, SizeIs(1));
  const EvalCase& data = set->cases[0];
  EXPECT_THAT(data.facts, SizeIs(2));
  ASSERT_THAT(data.questions, SizeIs(3)) << "adversarial and broken ones are left out";
  EXPECT_EQ(data.questions[0].id, "q0");
  EXPECT_EQ(data.questions[0].category, "single_hop");
  EXPECT_THAT(data.questions[0].evidence, ElementsAre(0));
  EXPECT_THAT(data.questions[0].distractors, ElementsAre("a cat"));
  EXPECT_EQ(data.questions[2].answer, "1");
  EXPECT_EQ(data.questions[2].category, "multi_hop");
  EXPECT_THAT(data.questions[2].distractors, SizeIs(0));
  LocomoOptions options;
  options.adversarial = true;
  const auto all = read_locomo_set(kConversation, options);
  ASSERT_THAT(all->cases[0].questions, SizeIs(4));
  EXPECT_THAT(all->cases[0].questions[3].distractors, ElementsAre("a red kayak"));
  options.distractors = 0;
  const auto without = read_locomo_set(kConversation, options);
  EXPECT_THAT(without->cases[0].questions[0].distractors, SizeIs(0));
  EXPECT_THAT(without->cases[0].questions[3].distractors, ElementsAre("a red kayak"))
      << "what the set has itself stays";
}

TEST(LocomoSetTest, DrawsAreTheSameForASeed) {
  LocomoOptions options;
  options.questions = 2;
  const auto once = read_locomo_set(kConversation, options);
  const auto again = read_locomo_set(kConversation, options);
  ASSERT_THAT(once->cases[0].questions, SizeIs(2));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(once->cases[0].questions[i].id, again->cases[0].questions[i].id);
  }
}

TEST(LocomoSetTest, OtherFilesAreRefused) {
  for (const char* const bytes :
       {"", "[]", "{}", "[{}]", "[1]", "nonsense", R"([{"sample_id": 3}])",
        R"([{"sample_id": "x", "conversation": {}}])"}) {
    EXPECT_EQ(read_locomo_set(bytes, {}).status().code(), StatusCode::kInvalidArgument) << bytes;
  }
  LocomoOptions options;
  options.ids = {"conv-2"};
  EXPECT_EQ(read_locomo_set(kConversation, options).status().code(), StatusCode::kNotFound);
}

class ResultLogTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) / "inferscale_results.jsonl";
    std::filesystem::remove(path_);
  }
  std::filesystem::path path_;
};

TEST_F(ResultLogTest, GoesOnWhereItWasCutOff) {
  {
    auto log = ResultLog::open(path_, "model 1");
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    ASSERT_TRUE(
        (*log)
            ->add(QuestionResult{"c", "q1", "temporal", "text k=5", {{"f1", 0.5}}, "\xFF", ""})
            .ok());
    ASSERT_TRUE((*log)->add(RowComparison{"c", "q1", "header", {{{1}}, {{2}}}}).ok());
    ASSERT_TRUE((*log)->add(EncodeResult{"c", "header", {3, 10, 20, 1.5, 0.25}}).ok());
    ASSERT_TRUE((*log)->add(RecallResult{"c", "q1", {{"5", 0.5}}}).ok());
  }
  std::ofstream(path_, std::ios::app) << R"({"result": "text k=5", "case": "c", "questi)";
  auto log = ResultLog::open(path_, "model 1");
  ASSERT_TRUE(log.ok()) << log.status().to_string();
  EXPECT_TRUE((*log)->has("c", "q1", "text k=5"));
  EXPECT_FALSE((*log)->has("c", "q2", "text k=5"));
  EXPECT_TRUE((*log)->has_rows("c", "q1", "header"));
  EXPECT_TRUE((*log)->has_encoding("c", "header"));
  ASSERT_THAT((*log)->results(), SizeIs(1));
  EXPECT_EQ((*log)->results()[0].values.at("f1"), 0.5);
  EXPECT_EQ((*log)->encodings()[0].cost.reach, 0.25);
  EXPECT_EQ((*log)->recalls().front().by_k.at("5"), 0.5);
  ASSERT_TRUE((*log)->add(QuestionResult{"c", "q2", "temporal", "text k=5", {}, "", "true"}).ok());
  log->reset();
  EXPECT_TRUE((*ResultLog::open(path_, "model 1"))->has("c", "q2", "text k=5"));
}

TEST_F(ResultLogTest, ACaseThatChangedIsNotMixedIn) {
  {
    auto log = ResultLog::open(path_, "model 1");
    EXPECT_TRUE((*log)->open_case("c", "1").ok());
    EXPECT_TRUE((*log)->open_case("c", "1").ok());
    EXPECT_TRUE((*log)->open_case("d", "2").ok()) << "more cases may come";
  }
  auto log = ResultLog::open(path_, "model 1");
  EXPECT_TRUE((*log)->open_case("d", "2").ok());
  EXPECT_EQ((*log)->open_case("c", "3").code(), StatusCode::kConflict);
}

TEST_F(ResultLogTest, OtherResultsAreNotMixedIn) {
  ASSERT_TRUE(ResultLog::open(path_, "model 1").ok());
  EXPECT_EQ(ResultLog::open(path_, "model 2").status().code(), StatusCode::kConflict);
  std::ofstream(path_) << "something else\n";
  EXPECT_EQ(ResultLog::open(path_, "model 1").status().code(), StatusCode::kDataLoss);
  std::ofstream(path_) << R"({"evaluation": "model 1"})"
                       << "\n[]\n";
  EXPECT_EQ(ResultLog::open(path_, "model 1").status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace inferscale::cli
