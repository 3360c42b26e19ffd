#include <fmt/format.h>

#include "cli/bench/encode.h"
#include "cli/bench/machine.h"
#include "cli/bench/store.h"
#include "cli/bench/ttft.h"
#include "cli/command.h"
#include "cli/option_values.h"
#include "cli/report_output.h"
#include "cli/status_line.h"

namespace inferscale::cli {
namespace {

constexpr std::uint32_t kMaxFacts = 1000;

struct BenchArgs {
  std::string out;
  std::string k = "0,5,10,20,50";
  std::string contexts = "header,primer:8,window:8";
  TtftOptions ttft;
  EncodeBenchOptions encode;
  StoreBenchOptions store;
};

void warn_if_busy(const Shell& shell) {
  if (const std::string warning = busy_warning(); !warning.empty()) {
    shell.note("inferscale: warning: " + warning);
  }
}

Result<int> run_ttft(Shell& shell, BenchArgs& args) {
  INFERSCALE_RETURN_IF_ERROR(check_report_file(args.out));
  TtftOptions& options = args.ttft;
  INFERSCALE_ASSIGN_OR_RETURN(options.k, parse_numbers("--k", args.k, 0, kMaxFacts));
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::uint32_t> top_j, shell.top_j());
  options.top_j = top_j.value_or(0);  // what the targets are stated for
  options.command = fmt::format("inferscale bench ttft --k {} --top-j {} --repeat {} --seed {}",
                                args.k, options.top_j, options.repeat, options.seed);
  options.command += options.warm ? " --warm" : "";
  options.table_width = static_cast<std::size_t>(terminal_columns());
  INFERSCALE_ASSIGN_OR_RETURN(const MemoryOptions memory,
                              shell.service_options(ModelNeed::kRequired));
  warn_if_busy(shell);
  INFERSCALE_ASSIGN_OR_RETURN(const BenchReport report,
                              run_ttft_bench(options, memory, shell.work_control()));
  return finish_report(shell, args.out, report);
}

Result<int> run_encode(Shell& shell, BenchArgs& args) {
  INFERSCALE_RETURN_IF_ERROR(check_report_file(args.out));
  EncodeBenchOptions& options = args.encode;
  const std::vector<std::string_view> contexts = split_list(args.contexts);
  options.contexts.assign(contexts.begin(), contexts.end());
  options.command = fmt::format("inferscale bench encode --contexts {} --facts {} --single {}",
                                args.contexts, options.facts, options.single);
  options.table_width = static_cast<std::size_t>(terminal_columns());
  INFERSCALE_ASSIGN_OR_RETURN(const MemoryOptions memory,
                              shell.memory_options(ModelNeed::kRequired));
  warn_if_busy(shell);
  INFERSCALE_ASSIGN_OR_RETURN(const BenchReport report,
                              run_encode_bench(options, memory, shell.work_control().progress));
  return finish_report(shell, args.out, report);
}

Result<int> run_store(Shell& shell, BenchArgs& args) {
  INFERSCALE_RETURN_IF_ERROR(check_report_file(args.out));
  StoreBenchOptions& options = args.store;
  options.command = fmt::format("inferscale bench store --records {} --tokens {}", options.records,
                                options.tokens);
  options.table_width = static_cast<std::size_t>(terminal_columns());
  warn_if_busy(shell);
  INFERSCALE_ASSIGN_OR_RETURN(const BenchReport report,
                              run_store_bench(options, shell.work_control().progress));
  return finish_report(shell, args.out, report);
}

}  // namespace

void add_bench_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<BenchArgs>();
  Command bench = root.add_group(
      {"bench", "Measure this machine and model", "inferscale bench ttft --k 0,50 --repeat 5"});
  bench
      .add(shell,
           {"ttft", "Time to first token: no facts, facts as text, facts injected",
            "inferscale bench ttft --k 0,50 --repeat 5 --out ttft.json"},
           [&shell, args] { return run_ttft(shell, *args); })
      .text("-k,--k", args->k, "N,N,...", "Numbers of facts")
      .number("--repeat", args->ttft.repeat, 1, 10000, "Measured rounds, after one that warms up")
      .number("--seed", args->ttft.seed, "Of the order within the rounds")
      .flag("--warm", args->ttft.warm, "Also with header and facts in the engine's own cache")
      .text("--out", args->out, "FILE", "Write the report there as well");
  bench
      .add(shell,
           {"encode", "What encoding a fact costs under each context, alone and in bulk",
            "inferscale bench encode --facts 64 --out encode.json"},
           [&shell, args] { return run_encode(shell, *args); })
      .text("--contexts", args->contexts, "CONTEXT,...", "Encode contexts to compare")
      .number("--facts", args->encode.facts, 1, 10000, "Facts encoded together")
      .number("--single", args->encode.single, 1, 1000, "Facts encoded one by one")
      .text("--out", args->out, "FILE", "Write the report there as well");
  bench
      .add(shell,
           {"store", "The disk tier beside a plain file: put, get, restart, erase, compaction",
            "inferscale bench store --records 5000 --out store.json"},
           [&shell, args] { return run_store(shell, *args); })
      .number("--records", args->store.records, 2, 1000000, "Records of SmolLM2-135M's shape")
      .number("--tokens", args->store.tokens, 1, 1024, "Tokens of a record")
      .text("--out", args->out, "FILE", "Write the report there as well");
}

}  // namespace inferscale::cli
