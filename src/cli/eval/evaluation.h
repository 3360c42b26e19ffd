#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/eval/arm.h"
#include "cli/eval/case_memory.h"
#include "cli/eval/dataset.h"
#include "cli/eval/eval_models.h"
#include "cli/eval/prompt_facts.h"
#include "cli/eval/result_log.h"
#include "cli/eval/scorer.h"

namespace inferscale::cli {

struct EvalOptions {
  std::vector<EvalArm> arms;  ///< what is injected; none, text and floor go with them
  std::vector<std::uint32_t> k = {50};
  std::uint32_t answer_tokens = 24;  ///< of a greedy answer
  bool floor = true;
  FactOrder order = FactOrder::kBestLast;
  std::string serving_system_prompt;     ///< not empty: serve behind another header than encoded
  std::uint32_t compared_questions = 0;  ///< of each case: whose rows are compared
  std::uint64_t seed = 1;
  std::filesystem::path directory;  ///< results, and the memories while they are needed
};

/// Says whether an answer is right ("true", "false", "unparsed"); may be empty.
using AnswerJudge =
    std::function<Result<std::string>(const EvalQuestion& question, const std::string& predicted)>;

/// Compares ways to give a model its memory: same facts, same token ids, same order in every arm
/// (docs/accuracy.md). What is in the log already is not done again. Not thread-safe.
class Evaluation {
 public:
  /// Borrows everything. `memory`: how the memories of the cases are opened.
  Evaluation(EvalOptions options, const EvalSet& set, const MemoryOptions& memory,
             EvalModels& models, ResultLog& log, AnswerJudge judge = {});

  /// Errors: those of the parts; kUnavailable (cancelled).
  Status run(const WorkControl& control);

 private:
  struct Case;
  struct Prompt;
  struct Reference;

  Status run_case(const EvalCase& data, const WorkControl& control);
  Result<CaseMemory*> memory_of(Case& current, const std::string& context,
                                const WorkControl& control);
  Status run_question(Case& current, const EvalQuestion& question, std::uint32_t k);
  Status run_arms(Case& current, const Prompt& prompt, std::uint32_t k);
  Status run_inject(Case& current, const Prompt& prompt, const Reference& reference,
                    const EvalArm& arm, std::uint32_t k);
  Status compare_rows(Case& current, const Prompt& prompt, const Reference& reference);
  Result<Prompt> make_prompt(Case& current, const EvalQuestion& question, std::uint32_t k);
  Result<Reference> make_reference(Case& current, const Prompt& prompt, std::uint32_t k);
  Status joint_records(Case& current, const Prompt& prompt, Reference& reference);
  Result<std::vector<Segment>> injected_plan(Case& current, const Prompt& prompt,
                                             const Reference& reference, const EvalArm& arm);
  Status keep(const Case& current, const EvalQuestion& question, const EvalArm& arm,
              std::uint32_t k, const ArmScores& scores, const ArmScores* reference);
  [[nodiscard]] bool wants(const Case& current, const EvalQuestion& question, const EvalArm& arm,
                           std::uint32_t k) const;
  [[nodiscard]] bool complete(const EvalCase& data) const;
  [[nodiscard]] std::vector<EvalArm> arms_of(const EvalQuestion& question) const;

  EvalOptions options_;
  const EvalSet& set_;
  MemoryOptions memory_;
  EvalModels& models_;
  ResultLog& log_;
  AnswerJudge judge_;
  std::optional<PromptBuilder> serving_prompt_;
  const WorkControl* control_ = nullptr;
  std::uint64_t done_ = 0;  // questions × k
};

}  // namespace inferscale::cli
