#include <fmt/format.h>

#include <filesystem>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "cli/bench/machine.h"
#include "cli/bench/temp_directory.h"
#include "cli/command.h"
#include "cli/eval/eval_report.h"
#include "cli/eval/evaluation.h"
#include "cli/eval/judge.h"
#include "cli/eval/locomo_set.h"
#include "cli/eval/synthetic.h"
#include "cli/import/import_formats.h"
#include "cli/interrupt.h"
#include "cli/option_values.h"
#include "cli/paths.h"
#include "cli/report_output.h"
#include "cli/status_line.h"

namespace inferscale::cli {
namespace {

constexpr std::uint32_t kMaxFacts = 1000;

struct EvalArgs {
  std::string conversations = "4";
  std::uint32_t questions = 20;
  bool adversarial = false;
  std::uint32_t distractors = LocomoOptions().distractors;
  std::string arms = "header,header@4,window:8,window:8@4";
  std::string k = "50";
  std::string order = "best-last";
  std::string cache_type = "f16";
  std::string work;
  std::string out;
  bool no_floor = false;
  SyntheticOptions synthetic;
  std::string judge_prompt = "strict";
  JudgeOptions judge;
  EvalOptions options;
};

/// An evaluation has memories of its own and no data directory: its --data is the data set.
Result<EvalSet> locomo_set(const Shell& shell, const EvalArgs& args) {
  const std::string& path = shell.options().data;
  if (path.empty()) {
    return invalid_argument("--data: give the path of locomo10.json");
  }
  LocomoOptions options;
  options.questions = args.questions;
  options.adversarial = args.adversarial;
  options.distractors = args.distractors;
  options.seed = args.options.seed;
  if (args.conversations.find_first_not_of("0123456789") == std::string::npos) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> count,
                                parse_numbers("--conversations", args.conversations, 0, 1'000'000));
    options.conversations = count.at(0);
  } else {
    const std::vector<std::string_view> ids = split_list(args.conversations);
    options.ids.assign(ids.begin(), ids.end());
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, kMaxImportBytes));
  auto set = read_locomo_set({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, options);
  return set.ok() ? set : Result<EvalSet>(set.status().with_context(path));
}

Status resolve(EvalArgs& args) {
  EvalOptions& options = args.options;
  INFERSCALE_ASSIGN_OR_RETURN(options.arms, parse_arms(args.arms));
  INFERSCALE_ASSIGN_OR_RETURN(options.k, parse_numbers("--k", args.k, 1, kMaxFacts));
  options.floor = !args.no_floor;
  options.order = args.order == "best-first" ? FactOrder::kBestFirst
                  : args.order == "shuffled" ? FactOrder::kShuffled
                                             : FactOrder::kBestLast;
  return {};
}

/// A judge and what it asks through; empty without --judge.
struct JudgeParts {
  std::unique_ptr<HttpClient> client;
  std::optional<Judge> judge;

  [[nodiscard]] AnswerJudge function() {
    if (!judge) {
      return {};
    }
    return
        [this](const EvalQuestion& question, const std::string& predicted) -> Result<std::string> {
          INFERSCALE_ASSIGN_OR_RETURN(const Verdict verdict,
                                      judge->judge(question.text, question.answer, predicted));
          return std::string(!verdict.parsed ? "unparsed" : verdict.correct ? "true" : "false");
        };
  }
};

Result<JudgeParts> make_judge(const EvalArgs& args) {
  JudgeParts parts;
  if (args.judge.url.empty()) {
    return parts;
  }
  JudgeOptions options = args.judge;
  options.prompt = args.judge_prompt == "paper" ? JudgePrompt::kPaper : JudgePrompt::kStrict;
  parts.client = make_http_client();
  INFERSCALE_ASSIGN_OR_RETURN(parts.judge, Judge::create(options, *parts.client));
  return parts;
}

/// What all results depend on, besides cases, arms and k: a log is of one such thing.
std::string identity(const EvalArgs& args, const EvalSet& set, const EngineInfo& engine,
                     const MemoryOptions& memory) {
  const std::string distractors = args.distractors == LocomoOptions().distractors
                                      ? ""
                                      : fmt::format(" distractors={}", args.distractors);
  return fmt::format(
      "{} {} answer_tokens={} order={} seed={} store={} cache={} header={} judge={} {}{}{}",
      set.name, engine.model.fingerprint.to_hex(), args.options.answer_tokens,
      fact_order_name(args.options.order), args.options.seed, codec_name(memory.store_codec),
      args.cache_type, args.options.serving_system_prompt, args.judge.model,
      args.judge.url.empty() ? "" : args.judge_prompt,
      memory.engine.empty() ? "" : " " + engine.library, distractors);
}

/// Keys and values that a server keeps cannot be looked at.
Status check_for_server(const EvalOptions& options) {
  if (options.compared_questions > 0) {
    return invalid_argument(
        "--compare-rows looks into records, which needs the embedded engine; leave out --engine");
  }
  for (const EvalArm& arm : options.arms) {
    if (arm.cure != Cure::kNothing) {
      return invalid_argument(fmt::format(
          "--arms: {} changes records, which needs the embedded engine; leave out --engine",
          arm.name(options.k.front())));
    }
  }
  return Status();
}

Result<int> evaluate(Shell& shell, EvalArgs& args, const EvalSet& set, std::string command) {
  INFERSCALE_RETURN_IF_ERROR(check_report_file(args.out));
  INFERSCALE_ASSIGN_OR_RETURN(MemoryOptions memory, shell.service_options(ModelNeed::kRequired));
  // --data is the data set; a server is of the installation whose data directory is the default
  // one.
  INFERSCALE_ASSIGN_OR_RETURN(memory.directory, data_directory(""));
  if (args.options.at_once > 1 && memory.engine.empty()) {
    return invalid_argument(
        "--at-once: the embedded engine runs one question at a time; leave it out, or name a "
        "server "
        "with --engine");
  }
  if (!memory.engine.empty()) {
    INFERSCALE_RETURN_IF_ERROR(check_for_server(args.options));
  }
  memory.cache_dtype = codec_from_name(args.cache_type).value_or(KvCodec::kF16);
  EvalProvenance provenance;
  provenance.command = std::move(command);
  provenance.started = format_rfc3339(now_us());
  provenance.table_width = static_cast<std::size_t>(terminal_columns());
  std::unique_ptr<TempDirectory> temporary;
  args.options.directory = args.work;
  if (args.work.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(temporary, TempDirectory::create());
    args.options.directory = temporary->path();
  }
  INFERSCALE_RETURN_IF_ERROR(posix_file_system().make_private_directory(args.options.directory));
  INFERSCALE_ASSIGN_OR_RETURN(const ServiceDependencies dependencies, service_dependencies(memory));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<EvalModels> models,
                              EvalModels::open(memory, dependencies));
  const EngineInfo& engine = models->engine().info();
  provenance.model = memory.engine.empty() ? fmt::format("{} ({})", engine.model.name,
                                                         memory.model.filename().string())
                                           : engine.model.name;
  provenance.library = engine.library;
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<ResultLog> log,
                              ResultLog::open(args.options.directory / "results.jsonl",
                                              identity(args, set, engine, memory)));
  INFERSCALE_ASSIGN_OR_RETURN(JudgeParts judge, make_judge(args));
  Evaluation evaluation(args.options, set, memory, *models, *log, judge.function());
  const Status status = evaluation.run(shell.work_control());
  if (interrupted() && !args.work.empty()) {
    shell.progress().finish();
    shell.note("inferscale: interrupted; the same command goes on from here");
  }
  if (!status.ok()) {
    return status;
  }
  return finish_report(shell, args.out,
                       make_eval_report(args.options, set, memory, *log, provenance));
}

Result<int> run_locomo(Shell& shell, EvalArgs& args) {
  INFERSCALE_RETURN_IF_ERROR(resolve(args));
  INFERSCALE_ASSIGN_OR_RETURN(const EvalSet set, locomo_set(shell, args));
  return evaluate(
      shell, args, set,
      fmt::format("inferscale eval locomo --conversations {} --questions {} --distractors {} "
                  "--arms {} --k {} --answer-tokens {} --seed {}",
                  args.conversations, args.questions, args.distractors, args.arms, args.k,
                  args.options.answer_tokens, args.options.seed));
}

Result<int> run_synthetic(Shell& shell, EvalArgs& args) {
  INFERSCALE_RETURN_IF_ERROR(resolve(args));
  args.synthetic.seed = args.options.seed;
  INFERSCALE_ASSIGN_OR_RETURN(const EvalSet set, make_synthetic_set(args.synthetic));
  return evaluate(
      shell, args, set,
      fmt::format("inferscale eval synthetic --cases {} --facts {} --questions {} --arms {} --k {} "
                  "--answer-tokens {} --seed {}",
                  args.synthetic.cases_per_kind, args.synthetic.facts_per_case,
                  args.synthetic.questions_per_case, args.arms, args.k, args.options.answer_tokens,
                  args.options.seed));
}

void add_eval_options(Command& command, const std::shared_ptr<EvalArgs>& args) {
  command
      .text("--arms", args->arms, "ARM,...",
            "What is injected: CONTEXT[+CURE=NUMBER][@TOP_J]; no memory, text and the noise floor "
            "go with it")
      .text("-k,--k", args->k, "N,N,...", "Numbers of facts")
      .number("--answer-tokens", args->options.answer_tokens, 1, 512, "Of a greedy answer, at most")
      .choice("--order", args->order, {"best-last", "best-first", "shuffled"},
              "In which order the facts stand in the prompt, in every arm")
      .text("--serving-system-prompt", args->options.serving_system_prompt, "TEXT",
            "Serve behind another header than the facts are encoded behind")
      .choice("--cache-type", args->cache_type, {"f16", "f32"}, "Elements of the engine's cache")
      .number("--compare-rows", args->options.compared_questions, 0, 10000,
              "Of each case: questions whose KV is compared with that of a joint prefill")
      .text("--judge", args->judge.url, "URL",
            "Have a model at this OpenAI-compatible server judge the answers")
      .text("--judge-model", args->judge.model, "NAME", "As the server calls it")
      .choice("--judge-prompt", args->judge_prompt, {"paper", "strict"},
              "The words of arXiv 2607.27090, or stricter ones of ours")
      .text("--judge-key-env", args->judge.api_key_env, "VARIABLE",
            "Environment variable that holds the server's key")
      .number("--at-once", args->options.at_once, 1, 16,
              "Questions under way at the same time; more than one with --engine")
      .flag("--no-floor", args->no_floor, "Leave out the noise floor")
      .number("--seed", args->options.seed, "Of everything that is drawn")
      .text("--work", args->work, "DIR",
            "Keep results here as they come, to go on after an interruption or with more arms")
      .text("--out", args->out, "FILE", "Write the report there as well");
}

}  // namespace

void add_eval_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<EvalArgs>();
  Command eval = root.add_group(
      {"eval", "Compare injected memory with the same facts as text",
       "inferscale eval locomo --data locomo10.json --arms header,window:8@4 --out eval.json"});
  Command locomo =
      eval.add(shell,
               {"locomo", "On the conversations and questions of LoCoMo",
                "inferscale eval locomo --data locomo10.json --conversations 4 --questions 20"},
               [&shell, args] { return run_locomo(shell, *args); });
  locomo.text("--conversations", args->conversations, "N|ID,...", "The first N (0: all), or these")
      .number("--questions", args->questions, 0, 100000, "Of each conversation, drawn; 0: all")
      .number("--distractors", args->distractors, 0, 100,
              "Wrong answers that are scored beside the right one of each question")
      .flag("--adversarial", args->adversarial, "The questions without an answer too");
  add_eval_options(locomo, args);
  Command synthetic =
      eval.add(shell,
               {"synthetic", "On made-up facts, each kind of which isolates one cause",
                "inferscale eval synthetic --arms header,window:8@4 --k 20"},
               [&shell, args] { return run_synthetic(shell, *args); });
  synthetic.number("--cases", args->synthetic.cases_per_kind, 1, 1000, "Of each kind")
      .number("--facts", args->synthetic.facts_per_case, 16, 128,
              "Of each case, at least 8 for each question")
      .number("--questions", args->synthetic.questions_per_case, 1, 8, "Of each case");
  add_eval_options(synthetic, args);
}

}  // namespace inferscale::cli
