// Whole evaluations on the fake engine, whose keys and values depend on nothing but the token:
// there an injected fact is a prefilled one, and every arm must say so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "cli/eval/eval_report.h"
#include "cli/eval/evaluation.h"
#include "engine/fake_engine.h"
#include "support/fake_vllm.h"
#include "unit/kv/temp_directory.h"
#include "unit/retrieval/fake_embedder.h"

namespace inferscale::cli {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

EvalSet small_set() {
  EvalSet set;
  set.name = "test";
  for (const char* const name : {"Ann", "Bo"}) {
    EvalCase data;
    data.id = std::string("case of ") + name;
    for (int i = 0; i < 12; ++i) {
      data.turns.push_back({"t" + std::to_string(i), name, "user",
                            "turn " + std::to_string(i) + " of " + name, "2025-03-01T10:00:00Z"});
      data.facts.push_back({std::string(name) + " has the number " + std::to_string(i),
                            "{}",
                            "2025-03-01T10:00:00Z",
                            {"t" + std::to_string(i)}});
    }
    data.questions.push_back({"q1", "Which number?", "single", "3", {"4", "5"}, {3}, {}});
    data.questions.push_back({"q2", "What else?", "pronoun", "7", {"8"}, {7}, {0, 1}});
    set.cases.push_back(std::move(data));
  }
  return set;
}

class EvalRunTest : public ::testing::Test {
 protected:
  EvalRunTest() {
    dependencies_.open_engine = [this](const MemoryOptions&) -> Result<std::unique_ptr<Engine>> {
      auto made = std::make_unique<FakeEngine>();
      engine_ = made.get();
      return std::unique_ptr<Engine>(std::move(made));
    };
    dependencies_.open_embedder = [](const MemoryOptions&) -> Result<std::unique_ptr<Embedder>> {
      return std::unique_ptr<Embedder>(std::make_unique<FakeEmbedder>());
    };
    options_.directory = directory_.path() / "work";
    options_.k = {4, 8};
    options_.answer_tokens = 4;
    std::filesystem::create_directories(options_.directory);
    models_ = std::move(EvalModels::open(memory_, dependencies_)).value();
    open_log();
  }

  void open_log() {
    log_.reset();
    log_ = std::move(ResultLog::open(options_.directory / "results.jsonl", "test")).value();
  }

  void set_arms(const char* arms) { options_.arms = std::move(parse_arms(arms)).value(); }

  Status run() {
    WorkControl control;
    control.cancelled = &cancelled_;
    return Evaluation(options_, set_, memory_, *models_, *log_, judge_).run(control);
  }

  Json report() { return Json::parse(make_eval_report(options_, set_, memory_, *log_, {}).json); }

  testing::TempDirectory directory_;
  ServiceDependencies dependencies_;
  MemoryOptions memory_;
  EvalOptions options_;
  EvalSet set_ = small_set();
  FakeEngine* engine_ = nullptr;
  std::unique_ptr<EvalModels> models_;
  std::unique_ptr<ResultLog> log_;
  AnswerJudge judge_;
  std::atomic<bool> cancelled_{false};
};

TEST_F(EvalRunTest, WhatIsExactComesOutAsExact) {
  set_arms(
      "header,header@2,window:2,header+first=1,header+last=2,header+joint_first=1,"
      "header+joint_rest=1");
  options_.compared_questions = 1;
  ASSERT_TRUE(run().ok()) << run().to_string();
  const Json json = report();
  EXPECT_EQ(json["arms"].size(), 2U * (4 + 7));
  for (const Json& arm : json["arms"]) {
    const bool of_pronouns = arm["kind"] == "facts";
    EXPECT_EQ(arm["questions"], of_pronouns ? 2 : 4) << arm["name"];
    if (arm["kind"] == "floor") {
      EXPECT_EQ(arm["metrics"]["kl_reference"]["mean"], 0.0) << arm["name"];
    }
    if (arm["kind"] == "inject") {
      const Json& single = arm["by_category"]["single"];
      EXPECT_EQ(single["kl_first"], 0.0) << arm["name"];
      EXPECT_EQ(single["kl_gold"], 0.0) << arm["name"];
      EXPECT_NEAR(single["top1_reference"].get<double>(), 1.0, 1e-12) << arm["name"];
      EXPECT_EQ(single["nll_minus_text"], 0.0) << arm["name"];
      EXPECT_GT(arm["tokens"]["injected"].get<double>(), 0) << arm["name"];
    }
    if (arm["kind"] == "none") {
      EXPECT_GT(arm["metrics"]["kl_first"]["mean"].get<double>(), 0) << arm["name"];
    }
  }
  ASSERT_TRUE(json.contains("rows"));
  for (const Json& rows : json["rows"]) {
    for (const Json& layer : rows["k_rel"]) {
      for (const Json& distance : layer) {
        EXPECT_LT(distance.get<double>(), 2e-3) << rows["context"];  // one rounding to f16
      }
    }
  }
}

TEST_F(EvalRunTest, TheReferenceReadsTheTurnsThatAQuestionNeeds) {
  set_arms("header");
  ASSERT_TRUE(run().ok());
  const auto longest = [&](const std::string& arm) {
    double tokens = 0;
    for (const QuestionResult& result : log_->results()) {
      if (result.arm == arm && result.question_id == "q2") {
        tokens = std::max(tokens, result.values.at("prompt_tokens"));
      }
    }
    return tokens;
  };
  EXPECT_GT(longest("text k=4"), longest("facts k=4"));
  EXPECT_EQ(longest("facts k=4"), longest("header top_j=0 k=4"));
  EXPECT_GT(report()["arms"].size(), 0U);
}

TEST_F(EvalRunTest, GoesOnAfterAnInterruption) {
  set_arms("header");
  std::uint32_t runs = 0;
  judge_ = [&](const EvalQuestion&, const std::string&) -> Result<std::string> {
    if (++runs == 5) {
      return unavailable("the judge is away");
    }
    return std::string("true");
  };
  EXPECT_EQ(run().code(), StatusCode::kUnavailable);
  open_log();
  const std::size_t before = log_->results().size();
  EXPECT_GT(before, 0U);
  EXPECT_TRUE(run().ok());
  EXPECT_EQ(log_->results().size(), report()["questions"].size());
  engine_->clear_calls();
  EXPECT_TRUE(run().ok());
  EXPECT_TRUE(engine_->calls().empty()) << "nothing is done twice";
  set_arms("header,window:2");
  EXPECT_TRUE(run().ok()) << "more arms can be added";
  EXPECT_EQ(report()["arms"].back()["context"], "window:2");
  EXPECT_EQ(report()["arms"].back()["judge"]["accuracy"], 1.0);
}

TEST_F(EvalRunTest, OneEvaluationAtATimeAndNothingCountsTwice) {
  set_arms("header");
  ASSERT_TRUE(run().ok());
  const std::filesystem::path file = options_.directory / "results.jsonl";
  EXPECT_EQ(ResultLog::open(file, "test").status().code(), StatusCode::kConflict);
  const Json once = report();
  log_.reset();
  const auto bytes = read_file(file, 1U << 20);
  ASSERT_TRUE(bytes.ok());
  // All but the head, of which there is one.
  std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  text += text.substr(text.find('\n') + 1);
  ASSERT_TRUE(write_file_atomic(file, as_byte_span(text), Durability::kNone).ok());
  open_log();
  EXPECT_EQ(report(), once);
}

TEST_F(EvalRunTest, WhatTheJudgeDoesNotSayCountsAsWrong) {
  set_arms("header");
  options_.k = {4};
  std::uint32_t asked = 0;
  judge_ = [&](const EvalQuestion&, const std::string&) -> Result<std::string> {
    constexpr std::array<const char*, 4> kVerdicts = {"true", "false", "unparsed", "true"};
    return std::string(kVerdicts[(asked++ / 2) % 4]);  // text, then header, of each question
  };
  ASSERT_TRUE(run().ok());
  const Json json = report();
  for (const Json& arm : json["arms"]) {
    if (arm["kind"] == "text" || arm["kind"] == "inject") {
      EXPECT_EQ(arm["judge"]["accuracy"], 0.5) << arm["name"];
      EXPECT_EQ(arm["judge"]["unparsed"], 1) << arm["name"];
    } else {
      EXPECT_FALSE(arm.contains("judge")) << arm["name"];
    }
  }
}

TEST_F(EvalRunTest, AnArmThatFellBackToTextIsAnErrorNotAFigure) {
  set_arms("header");
  options_.floor = false;
  engine_->reject_next_injections(1000);
  const Status status = run();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("inject"));
}

TEST_F(EvalRunTest, TheReportQuotesNothingOfTheDataSet) {
  set_arms("header");
  ASSERT_TRUE(run().ok());
  const std::string text = make_eval_report(options_, set_, memory_, *log_, {}).file;
  EXPECT_EQ(text.find("Which number"), std::string::npos);
  EXPECT_EQ(text.find("answer-"), std::string::npos) << "nor answers, which may quote it";
}

TEST_F(EvalRunTest, AReportIsOfTheCasesThatWereAskedFor) {
  set_arms("header");
  ASSERT_TRUE(run().ok());
  set_.cases.pop_back();
  const Json json = report();
  EXPECT_EQ(json["questions"].size(), json["arms"].size() * 2 - 2) << "one question needs turns";
  for (const Json& arm : json["arms"]) {
    EXPECT_EQ(arm["questions"], arm["kind"] == "facts" ? 1 : 2) << arm["name"];
  }
  for (const Json& question : json["questions"]) {
    EXPECT_EQ(question["case"], set_.cases[0].id);
  }
  EXPECT_EQ(json["encoding"][0]["facts"], 12);
}

TEST_F(EvalRunTest, AnotherServingHeaderIsReadAsText) {
  set_arms("header");
  options_.serving_system_prompt = "You are somebody else altogether.";
  ASSERT_TRUE(run().ok());
  const Json json = report();
  EXPECT_EQ(json["settings"]["serving_header"], "other");
  for (const Json& arm : json["arms"]) {
    if (arm["kind"] == "inject") {
      EXPECT_EQ(arm["by_category"]["single"]["kl_first"], 0.0);
      EXPECT_GT(arm["tokens"]["prefilled"].get<double>(), 0);
    }
  }
}

TEST_F(EvalRunTest, CancellingEndsIt) {
  set_arms("header");
  cancelled_ = true;
  EXPECT_EQ(run().code(), StatusCode::kUnavailable);
}

// The same evaluation over a server: what the server keeps is injected, and every figure is the
// same.
class EvalServedTest : public EvalRunTest {
 protected:
  EvalServedTest() {
    options_.k = {4};
    set_arms("header@1,window:2");
    const Status ran = run();
    EXPECT_TRUE(ran.ok()) << ran.to_string();
    embedded_ = report();
    memory_.directory = directory_.path() / "server data";
    std::filesystem::create_directories(memory_.directory / "vllm");
    EXPECT_TRUE(
        write_file_atomic(memory_.directory / "vllm" / "secret", secret_, Durability::kNone).ok());
    memory_.engine = "vllm=" + server_.url() + ",control=" + server_.control_url();
    ServiceDependencies dependencies = std::move(service_dependencies(memory_)).value();
    dependencies.open_embedder = dependencies_.open_embedder;
    auto models = EvalModels::open(memory_, dependencies);
    EXPECT_TRUE(models.ok()) << models.status().to_string();
    models_ = std::move(models).value();
    options_.directory = directory_.path() / "work over the server";
    std::filesystem::create_directories(options_.directory);
    open_log();
  }

  void expect_the_same_figures() {
    const Json served = report();
    ASSERT_EQ(served["arms"].size(), embedded_["arms"].size());
    for (std::size_t i = 0; i < served["arms"].size(); ++i) {
      const Json& mine = served["arms"][i];
      const Json& theirs = embedded_["arms"][i];
      EXPECT_EQ(mine["name"], theirs["name"]);
      EXPECT_EQ(mine["questions"], theirs["questions"]);
      EXPECT_EQ(mine["tokens"]["injected"], theirs["tokens"]["injected"]) << mine["name"];
      for (const char* const metric : {"nll_gold", "kl_reference", "f1"}) {
        if (theirs["metrics"].contains(metric)) {
          EXPECT_NEAR(mine["metrics"][metric]["mean"].get<double>(),
                      theirs["metrics"][metric]["mean"].get<double>(), 1e-5)
              << mine["name"] << " " << metric;
        }
      }
    }
  }

  const std::vector<std::byte> secret_ = std::vector<std::byte>(32, std::byte{7});
  FakeVllm server_{secret_};
  Json embedded_;
};

TEST_F(EvalServedTest, AServerGivesTheSameFigures) {
  const Status ran = run();
  ASSERT_TRUE(ran.ok()) << ran.to_string();
  expect_the_same_figures();
  EXPECT_GT(server_.records(), 0U);
  EXPECT_EQ(embedded_["settings"]["store_type"], "f16");
  EXPECT_EQ(report()["settings"]["store_type"], "of the server");
}

TEST_F(EvalServedTest, SeveralQuestionsAtOnceGiveTheSameFigures) {
  options_.at_once = 4;
  std::uint64_t told = 0;
  WorkControl control;
  control.progress = [&](const std::string& what, std::uint64_t done, std::uint64_t total) {
    if (what == "questions") {
      EXPECT_EQ(total, 4U);
      told += done;
    }
  };
  const Status ran = Evaluation(options_, set_, memory_, *models_, *log_, judge_).run(control);
  ASSERT_TRUE(ran.ok()) << ran.to_string();
  EXPECT_EQ(told, 1U + 2 + 3 + 4);
  expect_the_same_figures();
  EXPECT_TRUE(std::filesystem::is_empty(options_.directory / "memories"));
}

TEST_F(EvalServedTest, OfSeveralAtOnceTheFirstFailureEndsAll) {
  options_.at_once = 4;
  std::atomic<std::uint32_t> asked{0};
  judge_ = [&](const EvalQuestion&, const std::string&) -> Result<std::string> {
    return ++asked == 3 ? Result<std::string>(unavailable("the judge is away"))
                        : Result<std::string>(std::string("true"));
  };
  const Status status = run();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the judge is away"));
  judge_ = {};
  open_log();
  const Status again = run();
  EXPECT_TRUE(again.ok()) << again.to_string();
}

}  // namespace
}  // namespace inferscale::cli
