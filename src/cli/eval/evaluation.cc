#include "cli/eval/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "cli/eval/arm_values.h"
#include "cli/eval/case_identity.h"
#include "cli/eval/cures.h"
#include "cli/eval/draw.h"
#include "cli/eval/row_profile.h"

namespace inferscale::cli {
namespace {

constexpr const char* kBaseContext = "header";

EvalArm plain_arm(ArmKind kind) {
  EvalArm arm;
  arm.kind = kind;
  return arm;
}

bool is_joint(Cure cure) { return cure == Cure::kJointFirst || cure == Cure::kJointRest; }

}  // namespace

struct Evaluation::Case {
  const EvalCase& data;
  std::filesystem::path directory;
  std::map<std::string, std::unique_ptr<CaseMemory>> memories;  // by context
  CaseMemory* base = nullptr;                                   // retrieves, and has the words
};

/// A question with its facts, the same in every arm.
struct Evaluation::Prompt {
  const EvalQuestion* question = nullptr;
  std::vector<std::size_t> facts;  // in prompt order
  std::vector<Segment> turns;      // what the reference reads before the facts
  std::vector<TokenId> header;
  std::vector<TokenId> tail;
  AnswerPaths paths;
};

struct Evaluation::Reference {
  ArmScores scores;
  std::vector<Segment> plan;
  std::vector<RecordPtr> joint;  // of the facts, once they are asked for
};

Evaluation::Evaluation(EvalOptions options, const EvalSet& set, const MemoryOptions& memory,
                       EvalModels& models, ResultLog& log, AnswerJudge judge)
    : options_(std::move(options)),
      set_(set),
      memory_(memory),
      models_(models),
      log_(log),
      judge_(std::move(judge)) {}

Status Evaluation::run(const WorkControl& control) {
  control_ = &control;
  done_ = 0;
  if (!options_.serving_system_prompt.empty()) {
    PromptOptions prompt;
    prompt.system_prompt = options_.serving_system_prompt;
    INFERSCALE_ASSIGN_OR_RETURN(serving_prompt_,
                                PromptBuilder::create(models_.engine().tokenizer(),
                                                      models_.engine().chat_format(), prompt));
  }
  std::vector<Case> cases;
  std::vector<std::size_t> questions;
  for (const EvalCase& data : set_.cases) {
    INFERSCALE_RETURN_IF_ERROR(log_.open_case(data.id, case_digest(data)));
    if (complete(data)) {
      done_ += data.questions.size() * options_.k.size();
      continue;
    }
    cases.push_back(
        Case{data, options_.directory / "memories" / folder_name(data.id), {}, nullptr});
    questions.push_back(data.questions.size());
  }
  CaseQueue queue(questions);
  std::vector<std::thread> others;
  for (std::uint32_t i = 1; i < options_.at_once; ++i) {
    others.emplace_back([&] { work(queue, cases); });
  }
  work(queue, cases);
  for (std::thread& other : others) {
    other.join();
  }
  return queue.status();
}

void Evaluation::work(CaseQueue& queue, std::vector<Case>& cases) {
  while (const std::optional<CaseQueue::Job> job = queue.next()) {
    Case& current = cases.at(job->case_index);
    const Status status = do_job(queue, *job, current);
    if (!status.ok()) {
      queue.fail(status.with_context(fmt::format("case {}", current.data.id)));
    }
  }
}

Status Evaluation::do_job(CaseQueue& queue, const CaseQueue::Job& job, Case& current) {
  if (!job.question) {
    INFERSCALE_RETURN_IF_ERROR(open_case(current));
    queue.opened(job.case_index);
    return Status();
  }
  INFERSCALE_RETURN_IF_ERROR(ask(current, current.data.questions.at(*job.question)));
  if (queue.answered(job.case_index)) {
    current.memories.clear();
    std::error_code error;
    std::filesystem::remove_all(current.directory,
                                error);  // what stays is made again or in the way
  }
  return Status();
}

void Evaluation::tell(const std::string& what, std::uint64_t done, std::uint64_t total) {
  if (control_->progress) {
    const std::lock_guard lock(mutex_);
    control_->progress(what, done, total);
  }
}

bool Evaluation::wants(const Case& current, const EvalQuestion& question, const EvalArm& arm,
                       std::uint32_t k) const {
  return !log_.has(current.data.id, question.id, arm.name(k));
}

std::vector<EvalArm> Evaluation::arms_of(const EvalQuestion& question) const {
  std::vector<EvalArm> arms = {plain_arm(ArmKind::kText), plain_arm(ArmKind::kNone)};
  if (options_.floor) {
    arms.push_back(plain_arm(ArmKind::kFloor));
  }
  if (!question.needed_turns.empty()) {
    arms.push_back(plain_arm(ArmKind::kFacts));
  }
  arms.insert(arms.end(), options_.arms.begin(), options_.arms.end());
  return arms;
}

bool Evaluation::complete(const EvalCase& data) const {
  const Case current{data, {}, {}, nullptr};
  for (const EvalQuestion& question : data.questions) {
    for (const EvalArm& arm : arms_of(question)) {
      for (const std::uint32_t k : options_.k) {
        if (wants(current, question, arm, k)) {
          return false;
        }
      }
    }
  }
  return true;
}

Status Evaluation::open_case(Case& current) {
  const std::string base = options_.arms.empty() ? kBaseContext : options_.arms.front().context;
  INFERSCALE_ASSIGN_OR_RETURN(current.base, memory_of(current, base));
  for (const EvalArm& arm : options_.arms) {
    INFERSCALE_RETURN_IF_ERROR(memory_of(current, arm.context).status());
  }
  return Status();
}

Status Evaluation::ask(Case& current, const EvalQuestion& question) {
  std::size_t total = 0;
  for (const EvalCase& each : set_.cases) {
    total += each.questions.size() * options_.k.size();
  }
  for (const std::uint32_t k : options_.k) {
    INFERSCALE_RETURN_IF_ERROR(
        run_question(current, question, k).with_context("question " + question.id));
    std::uint64_t done = 0;
    {
      const std::lock_guard lock(mutex_);
      done = ++done_;
    }
    tell("questions", done, total);
  }
  return Status();
}

Result<CaseMemory*> Evaluation::memory_of(Case& current, const std::string& context) {
  std::unique_ptr<CaseMemory>& memory = current.memories[context];
  if (memory != nullptr) {
    return memory.get();
  }
  std::error_code error;
  std::filesystem::create_directories(current.directory, error);
  INFERSCALE_RETURN_IF_ERROR(models_.prepare(current.directory / folder_name(context)));
  INFERSCALE_ASSIGN_OR_RETURN(memory,
                              CaseMemory::open(memory_, models_.lend(), current.data,
                                               current.directory / folder_name(context), context));
  WorkControl encoding = *control_;
  encoding.progress = [&](const std::string&, std::uint64_t done, std::uint64_t total) {
    tell(fmt::format("encode {} under {}", current.data.id, context), done, total);
  };
  INFERSCALE_ASSIGN_OR_RETURN(const EncodeCost cost, memory->encode(encoding));
  // What a run that was cut off has encoded is not in this run's cost.
  if (!log_.has_encoding(current.data.id, context) && cost.facts == memory->distinct_facts()) {
    INFERSCALE_RETURN_IF_ERROR(log_.add(EncodeResult{current.data.id, context, cost}));
  }
  return memory.get();
}

Result<Evaluation::Prompt> Evaluation::make_prompt(Case& current, const EvalQuestion& question,
                                                   std::uint32_t k) {
  Prompt prompt;
  prompt.question = &question;
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::size_t> ranked,
                              current.base->rank(question.text));
  auto recall = evidence_recall(ranked, question);
  if (!recall.empty()) {
    INFERSCALE_RETURN_IF_ERROR(
        log_.add(RecallResult{current.data.id, question.id, std::move(recall)}));
  }
  prompt.facts = order_facts(choose_facts(ranked, question, k), options_.order,
                             mix_seed(options_.seed, question.id));
  const PromptBuilder& builder = serving_prompt_ ? *serving_prompt_ : *current.base->parts().prompt;
  prompt.header = builder.header();
  for (const std::size_t turn : question.needed_turns) {
    const TurnInput& input = current.data.turns.at(turn);
    Segment segment;
    INFERSCALE_ASSIGN_OR_RETURN(
        segment.tokens,
        builder.fact_line(fmt::format("{}: {}", input.speaker, input.text), std::nullopt, 0));
    prompt.turns.push_back(std::move(segment));
  }
  INFERSCALE_ASSIGN_OR_RETURN(prompt.tail, builder.tail(question.text));
  const Tokenizer& tokenizer = models_.engine().tokenizer();
  INFERSCALE_ASSIGN_OR_RETURN(prompt.paths.gold, tokenizer.encode(question.answer, false));
  for (const std::string& distractor : question.distractors) {
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<TokenId> path, tokenizer.encode(distractor, false));
    prompt.paths.distractors.push_back(std::move(path));
  }
  return prompt;
}

Result<Evaluation::Reference> Evaluation::make_reference(Case& current, const Prompt& prompt,
                                                         std::uint32_t k) {
  Reference reference;
  reference.plan.push_back({prompt.header, {}});
  reference.plan.insert(reference.plan.end(), prompt.turns.begin(), prompt.turns.end());
  for (const std::size_t fact : prompt.facts) {
    reference.plan.push_back({current.base->lines().at(fact), {}});
  }
  Scorer scorer(models_.engine(), options_.answer_tokens, control_->cancelled);
  INFERSCALE_ASSIGN_OR_RETURN(reference.scores,
                              scorer.run_reference(reference.plan, prompt.tail, prompt.paths));
  INFERSCALE_RETURN_IF_ERROR(
      keep(current, *prompt.question, plain_arm(ArmKind::kText), k, reference.scores, nullptr));
  return reference;
}

Status Evaluation::run_question(Case& current, const EvalQuestion& question, std::uint32_t k) {
  const std::vector<EvalArm> arms = arms_of(question);
  if (std::none_of(arms.begin(), arms.end(),
                   [&](const EvalArm& arm) { return wants(current, question, arm, k); })) {
    return {};
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Prompt prompt, make_prompt(current, question, k));
  return run_arms(current, prompt, k);
}

Status Evaluation::run_arms(Case& current, const Prompt& prompt, std::uint32_t k) {
  INFERSCALE_ASSIGN_OR_RETURN(Reference reference, make_reference(current, prompt, k));
  AnswerPaths paths = prompt.paths;
  paths.reference = reference.scores.answer;
  Scorer scorer(models_.engine(), options_.answer_tokens, control_->cancelled);
  for (const EvalArm& arm : arms_of(*prompt.question)) {
    if (!wants(current, *prompt.question, arm, k)) {
      continue;
    }
    if (arm.kind == ArmKind::kInject) {
      if (is_joint(arm.cure)) {
        INFERSCALE_RETURN_IF_ERROR(joint_records(current, prompt, reference));
      }
      INFERSCALE_RETURN_IF_ERROR(run_inject(current, prompt, reference, arm, k));
      continue;
    }
    std::vector<Segment> plan = reference.plan;
    if (arm.kind == ArmKind::kNone) {
      plan.resize(1);
    } else if (arm.kind == ArmKind::kFacts) {
      plan.erase(plan.begin() + 1,
                 plan.begin() + 1 + static_cast<std::ptrdiff_t>(prompt.turns.size()));
    }
    const PromptMode mode = arm.kind == ArmKind::kFloor ? PromptMode::kSplit : PromptMode::kText;
    INFERSCALE_ASSIGN_OR_RETURN(const ArmScores scores, scorer.run(plan, prompt.tail, paths, mode));
    INFERSCALE_RETURN_IF_ERROR(keep(current, *prompt.question, arm, k, scores, &reference.scores));
  }
  const bool compared =
      std::any_of(current.data.questions.begin(),
                  current.data.questions.begin() +
                      static_cast<std::ptrdiff_t>(std::min<std::size_t>(
                          options_.compared_questions, current.data.questions.size())),
                  [&](const EvalQuestion& question) { return question.id == prompt.question->id; });
  return compared && k == options_.k.back() ? compare_rows(current, prompt, reference) : Status();
}

Status Evaluation::run_inject(Case& current, const Prompt& prompt, const Reference& reference,
                              const EvalArm& arm, std::uint32_t k) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Segment> plan,
                              injected_plan(current, prompt, reference, arm));
  AnswerPaths paths = prompt.paths;
  paths.reference = reference.scores.answer;
  Scorer scorer(models_.engine(), options_.answer_tokens, control_->cancelled);
  INFERSCALE_ASSIGN_OR_RETURN(const ArmScores scores,
                              scorer.run(plan, prompt.tail, paths, PromptMode::kInject));
  return keep(current, *prompt.question, arm, k, scores, &reference.scores);
}

Result<std::vector<Segment>> Evaluation::injected_plan(Case& current, const Prompt& prompt,
                                                       const Reference& reference,
                                                       const EvalArm& arm) {
  CaseMemory& memory = *current.memories.at(arm.context);
  std::vector<Segment> plan;
  if (serving_prompt_) {
    plan.push_back({prompt.header, {}});
  } else {
    INFERSCALE_ASSIGN_OR_RETURN(Segment header, memory.header());
    plan.push_back(std::move(header));
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<Lease> leases, memory.lease(prompt.facts));
  const std::size_t injected =
      prompt.facts.size() - std::min<std::size_t>(arm.top_j, prompt.facts.size());
  if (arm.cure != Cure::kNothing) {
    CureInput input{models_.engine(), plan.front(), {}, {}, reference.joint};
    for (std::size_t i = 0; i < injected; ++i) {
      // The lease goes with the record: what a cure leaves as it is may outlive this call.
      input.records.emplace_back(leases[i].record(), [lease = leases[i]](const Record*) {});
    }
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<RecordPtr> cured, apply_cure(arm, input));
    for (std::size_t i = 0; i < injected; ++i) {
      leases[i] = Lease(std::move(cured[i]));
    }
  }
  for (std::size_t i = 0; i < prompt.facts.size(); ++i) {
    plan.push_back({memory.lines().at(prompt.facts[i]), i < injected ? leases[i] : Lease()});
  }
  return plan;
}

Status Evaluation::joint_records(Case& current, const Prompt& prompt, Reference& reference) {
  if (!reference.joint.empty()) {
    return {};
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Lease> leases, current.base->lease(prompt.facts));
  std::vector<RecordMeta> metas;
  for (const Lease& lease : leases) {
    metas.push_back(lease.record()->meta());
  }
  Scorer scorer(models_.engine(), options_.answer_tokens, control_->cancelled);
  INFERSCALE_ASSIGN_OR_RETURN(reference.joint,
                              scorer.capture_joint(reference.plan, prompt.tail, metas));
  return {};
}

Status Evaluation::compare_rows(Case& current, const Prompt& prompt, const Reference& reference) {
  Reference with_rows = reference;
  for (const auto& [context, memory] : current.memories) {
    if (log_.has_rows(current.data.id, prompt.question->id, context)) {
      continue;
    }
    INFERSCALE_RETURN_IF_ERROR(joint_records(current, prompt, with_rows));
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Lease> leases, memory->lease(prompt.facts));
    RowProfile profile;
    for (std::size_t i = 0; i < leases.size(); ++i) {
      INFERSCALE_ASSIGN_OR_RETURN(const RowDistances distances,
                                  row_distances(*with_rows.joint[i], *leases[i].record()));
      profile.add(distances);
    }
    INFERSCALE_RETURN_IF_ERROR(
        log_.add(RowComparison{current.data.id, prompt.question->id, context, profile.mean()}));
  }
  return {};
}

Status Evaluation::keep(const Case& current, const EvalQuestion& question, const EvalArm& arm,
                        std::uint32_t k, const ArmScores& scores, const ArmScores* reference) {
  if (!wants(current, question, arm, k)) {
    return {};
  }
  QuestionResult result{current.data.id,    question.id, question.category, arm.name(k), {},
                        scores.answer_text, ""};
  result.values = arm_values(scores, question.answer, reference);
  if (judge_ && (arm.kind == ArmKind::kText || arm.kind == ArmKind::kInject)) {
    const std::lock_guard lock(mutex_);
    INFERSCALE_ASSIGN_OR_RETURN(result.verdict, judge_(question, scores.answer_text));
  }
  return log_.add(std::move(result));
}

}  // namespace inferscale::cli
