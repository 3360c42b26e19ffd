#include "cli/bench/encode.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "cli/bench/machine.h"
#include "cli/bench/statistics.h"
#include "cli/bench/temp_directory.h"
#include "cli/bench/workload.h"
#include "cli/interrupt.h"
#include "cli/text_table.h"
#include "engine/llama/llama_engine.h"

namespace inferscale::cli {
namespace {

using Json = nlohmann::ordered_json;

// Facts that stand in the scope before those that are measured, so that windows are full.
constexpr std::uint32_t kFactsBefore = 16;

struct EncodeCost {
  std::uint64_t facts = 0;
  std::uint64_t tokens_prefilled = 0;
  double ms = 0;
};

/// Own tokens of a run of facts and what the engine takes to prefill them, nothing else.
struct PlainCost {
  std::uint64_t tokens = 0;
  double ms = 0;
};

class PlainPrefill {
 public:
  static Result<PlainPrefill> open(const MemoryOptions& memory, std::uint32_t n_facts) {
    PlainPrefill plain;
    LlamaEngineOptions options;
    options.model = memory.model;
    options.cache_directory = memory.cache_directory;
    options.threads = memory.threads;
    INFERSCALE_ASSIGN_OR_RETURN(plain.engine_, open_llama_engine(options));
    INFERSCALE_ASSIGN_OR_RETURN(plain.workload_, Workload::create(*plain.engine_, n_facts, {}));
    return plain;
  }

  [[nodiscard]] const Workload& workload() const { return *workload_; }
  [[nodiscard]] const EngineInfo& info() const { return engine_->info(); }

  /// One prefill of the tokens of facts [from, from + count), as far as the context goes.
  Result<PlainCost> measure(std::size_t from, std::size_t count) {
    PlainCost cost;
    std::vector<TokenId> tokens;
    for (std::size_t i = from; i < from + count; ++i) {
      INFERSCALE_ASSIGN_OR_RETURN(const std::vector<TokenId> line,
                                  workload_->fact_tokens(workload_->facts()[i]));
      cost.tokens += line.size();
      if (tokens.size() + line.size() < engine_->info().context_tokens) {
        tokens.insert(tokens.end(), line.begin(), line.end());
      }
    }
    const std::size_t run_tokens = tokens.size();
    RunRequest run;
    run.branches.push_back({std::move(tokens), {}, {}});
    INFERSCALE_ASSIGN_OR_RETURN(const RunResult result, engine_->run(std::move(run)));
    cost.ms = result.timings.prefill_ms * static_cast<double>(cost.tokens) /
              static_cast<double>(std::max<std::size_t>(run_tokens, 1));
    return cost;
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::optional<Workload> workload_;
};

std::vector<FactInput> inputs(const Workload& workload, std::size_t from, std::size_t count) {
  std::vector<FactInput> facts;
  for (std::size_t i = from; i < from + count; ++i) {
    FactInput fact;
    fact.text = workload.facts()[i].text;
    fact.event_time = workload.facts()[i].event_time;
    facts.push_back(std::move(fact));
  }
  return facts;
}

WorkControl cancellable() {
  WorkControl control;
  control.cancelled = &interrupted();
  return control;
}

Result<EncodeCost> encode(MemoryService& service, const std::vector<FactInput>& facts) {
  INFERSCALE_ASSIGN_OR_RETURN(const AddReply added,
                              service.add(Scope{}, {}, facts, false, cancellable()));
  INFERSCALE_ASSIGN_OR_RETURN(const EncodeReply reply, service.encode_pending(cancellable()));
  if (interrupted()) {
    return unavailable("stopped; nothing was written");
  }
  if (reply.encoded != added.facts_added || reply.failed > 0) {
    return internal_error(
        fmt::format("{} of {} facts were encoded", reply.encoded, added.facts_added));
  }
  return EncodeCost{reply.encoded, reply.tokens_prefilled, reply.elapsed_ms};
}

Json row_json(const std::string& context, const char* mode, const EncodeCost& cost,
              const PlainCost& plain) {
  const auto facts = static_cast<double>(std::max<std::uint64_t>(cost.facts, 1));
  return {{"context", context},
          {"mode", mode},
          {"facts", cost.facts},
          {"own_tokens_per_fact", static_cast<double>(plain.tokens) / facts},
          {"prefilled_tokens_per_fact", static_cast<double>(cost.tokens_prefilled) / facts},
          {"ms_per_fact", cost.ms / facts},
          {"plain_prefill_ms_per_fact", plain.ms / facts},
          {"prefilled_over_own",
           static_cast<double>(cost.tokens_prefilled) / static_cast<double>(plain.tokens)},
          {"ms_over_plain_prefill", cost.ms / plain.ms}};
}

/// Both rows of one context, over a fresh service. Each encoding runs right beside the plain
/// prefill that it is compared with.
Status bench_context(const std::string& context, const EncodeBenchOptions& options,
                     const MemoryOptions& memory, PlainPrefill& plain, Json& rows) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<TempDirectory> directory,
                              TempDirectory::create());
  MemoryOptions own = memory;
  own.directory = directory->path();
  own.encode_context = context;
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              MemoryService::open(own));
  const Workload& work = plain.workload();
  INFERSCALE_RETURN_IF_ERROR(encode(*service, inputs(work, 0, kFactsBefore)).status());

  EncodeCost single;
  PlainCost single_plain;
  for (std::uint32_t i = 0; i < options.single; ++i) {
    const std::size_t at = kFactsBefore + i;
    INFERSCALE_ASSIGN_OR_RETURN(const EncodeCost cost, encode(*service, inputs(work, at, 1)));
    INFERSCALE_ASSIGN_OR_RETURN(const PlainCost beside, plain.measure(at, 1));
    single.facts += cost.facts;
    single.tokens_prefilled += cost.tokens_prefilled;
    single.ms += cost.ms;
    single_plain.tokens += beside.tokens;
    single_plain.ms += beside.ms;
  }
  rows.push_back(row_json(context, "single", single, single_plain));

  const std::size_t from = kFactsBefore + options.single;
  INFERSCALE_ASSIGN_OR_RETURN(const EncodeCost bulk,
                              encode(*service, inputs(work, from, options.facts)));
  INFERSCALE_ASSIGN_OR_RETURN(const PlainCost beside, plain.measure(from, options.facts));
  rows.push_back(row_json(context, "bulk", bulk, beside));
  return {};
}

std::string encode_table(const Json& report, std::size_t width) {
  const auto right = [](const char* title) { return TableColumn{title, Align::kRight}; };
  TextTable table({{"context"},
                   {"mode"},
                   right("own tokens"),
                   right("prefilled"),
                   right("x own"),
                   right("ms a fact"),
                   right("plain prefill"),
                   right("x plain")});
  const auto number = [](const Json& value) { return fmt::format("{:.1f}", value.get<double>()); };
  for (const Json& row : report["rows"]) {
    table.add_row({row["context"].get<std::string>(), row["mode"].get<std::string>(),
                   number(row["own_tokens_per_fact"]), number(row["prefilled_tokens_per_fact"]),
                   number(row["prefilled_over_own"]), number(row["ms_per_fact"]),
                   number(row["plain_prefill_ms_per_fact"]), number(row["ms_over_plain_prefill"])});
  }
  return fmt::format("{}\n{} ({})\n\n{}", report["machine"].get<std::string>(),
                     report["model"].get<std::string>(), report["model_file"].get<std::string>(),
                     table.render(width));
}

}  // namespace

Result<BenchReport> run_encode_bench(const EncodeBenchOptions& options, const MemoryOptions& memory,
                                     const Progress& progress) {
  const double load = load_average();
  INFERSCALE_ASSIGN_OR_RETURN(
      PlainPrefill plain,
      PlainPrefill::open(memory, kFactsBefore + options.single + options.facts));
  INFERSCALE_RETURN_IF_ERROR(plain.measure(0, kFactsBefore).status());  // warms up
  Json rows = Json::array();
  for (std::size_t i = 0; i < options.contexts.size(); ++i) {
    progress("bench", i, options.contexts.size());
    INFERSCALE_RETURN_IF_ERROR(bench_context(options.contexts[i], options, memory, plain, rows));
  }
  const Json report = {{"bench", "encode"},
                       {"command", options.command},
                       {"machine", machine_description()},
                       {"load_average_before", load},
                       {"load_average_after", load_average()},
                       {"model", plain.info().model.name},
                       {"model_file", memory.model.filename().string()},
                       {"library", plain.info().library},
                       {"version", INFERSCALE_VERSION},
                       {"date", format_rfc3339(now_us())},
                       {"rows", rows}};
  return BenchReport{report.dump(), report.dump(2) + "\n",
                     encode_table(report, options.table_width)};
}

}  // namespace inferscale::cli
