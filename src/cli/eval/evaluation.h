#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/eval/arm.h"
#include "cli/eval/case_memory.h"
#include "cli/eval/case_queue.h"
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
  std::uint32_t at_once = 1;        ///< questions; more than one for an engine that batches
  std::filesystem::path directory;  ///< results, and the memories while they are needed
};

/// Says whether an answer is right ("true", "false", "unparsed"); may be empty.
using AnswerJudge =
    std::function<Result<std::string>(const EvalQuestion& question, const std::string& predicted)>;

/// Compares ways to give a model its memory: same facts, same token ids, same order in every arm
/// (docs/accuracy.md). What is in the log already is not done again. Not thread-safe; with
/// `at_once` it has threads of its own, which call the judge and the progress one at a time.
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

  void work(CaseQueue& queue, std::vector<Case>& cases);
  Status do_job(CaseQueue& queue, const CaseQueue::Job& job, Case& current);
  Status open_case(Case& current);
  Status ask(Case& current, const EvalQuestion& question);
  void tell(const std::string& what, std::uint64_t done, std::uint64_t total);
  Result<CaseMemory*> memory_of(Case& current, const std::string& context);
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
  std::mutex mutex_;        // guards done_; held while progress or the judge is called
  std::uint64_t done_ = 0;  // questions × k
};

}  // namespace inferscale::cli
