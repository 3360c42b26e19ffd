#include "cli/ask_command.h"

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json_views.h"
#include "cli/status_line.h"
#include "cli/terminal_text.h"

namespace inferscale::cli {
namespace {

constexpr std::uint32_t kMaxFacts = 1000;
constexpr std::uint32_t kMaxAnswerTokens = 8192;
constexpr std::size_t kMaxQuestionBytes = 2U << 20;

struct AskArgs {
  std::string question;
  std::uint32_t k = 10;
  std::string filter;
  bool no_inject = false;
  bool compare = false;
  bool quiet = false;
  bool no_wait = false;
  std::uint32_t rounds = 3;
  std::uint32_t max_tokens = 128;
  float temperature = 0;
  std::uint64_t seed = 0;
};

Result<AskRequest> make_request(const Shell& shell, const AskArgs& args) {
  AskRequest request;
  INFERSCALE_ASSIGN_OR_RETURN(request.scope, shell.scope());
  INFERSCALE_ASSIGN_OR_RETURN(request.question, text_or_stdin(args.question, kMaxQuestionBytes));
  INFERSCALE_ASSIGN_OR_RETURN(request.top_j, shell.top_j());
  request.k = args.k;
  request.inject = !args.no_inject;
  request.filter = args.filter;
  request.max_tokens = args.max_tokens;
  request.temperature = args.temperature;
  request.seed = args.seed;
  request.cancelled = &interrupted();
  return request;
}

/// Encodes the facts that this answer wanted and found without KV, so that the next one has it.
/// The answer stands; that this did not work is worth a note only.
void encode_wanted(Shell& shell, MemoryService& service) {
  const Result<EncodeReply> encoded = service.encode_wanted(shell.work_control());
  shell.progress().finish();
  if (!encoded.ok() && !interrupted()) {
    shell.note("inferscale: " + encoded.status().with_context("encoding").to_string());
  }
}

Result<int> run_ask(Shell& shell, const AskArgs& args) {
  if (args.compare && (args.no_inject || args.temperature != 0)) {
    return invalid_argument(
        "--compare runs every arm greedily; leave out --no-inject and --temperature");
  }
  INFERSCALE_ASSIGN_OR_RETURN(AskRequest request, make_request(shell, args));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kRequired));
  if (args.compare) {
    INFERSCALE_ASSIGN_OR_RETURN(const CompareReply reply, service->compare(request, args.rounds));
    if (shell.json()) {
      shell.print_json(json_text(request.question, reply));
    } else {
      shell.print(compare_table(reply, static_cast<std::size_t>(terminal_columns())));
    }
    return 0;
  }
  if (!shell.json()) {
    request.on_text = stream_to_stdout(shell);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const AskReply reply, service->ask(request));
  if (shell.json()) {
    shell.print_json(json_text(reply));
  } else {
    shell.print("\n");
  }
  if (!args.quiet) {
    shell.note(trace_line(reply));
  }
  if (!args.no_wait) {
    encode_wanted(shell, *service);
  }
  return 0;
}

}  // namespace

std::function<bool(std::string_view)> stream_to_stdout(const Shell& shell) {
  return [&shell](std::string_view piece) {
    shell.print(piece);
    return !interrupted().load();
  };
}

std::string trace_line(const AskReply& reply) {
  std::size_t injected = 0;
  for (const UsedFact& fact : reply.facts) {
    injected += fact.injected ? 1 : 0;
  }
  std::string line =
      fmt::format("[{} facts, {} injected · {} tokens injected, {} prefilled", reply.facts.size(),
                  injected, reply.tokens.injected, reply.tokens.prefilled);
  if (reply.tokens.reused > 0) {
    line += fmt::format(", {} reused", reply.tokens.reused);
  }
  line += fmt::format(" · first token after {:.0f} ms", reply.timings.ttft);
  for (const FallbackCount& fallback : reply.fallbacks) {
    line += fmt::format(" · {} {}", fallback.reason, fallback.count);
  }
  return line + (reply.truncated ? " · cut at --max-tokens]" : "]");
}

void add_ask_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<AskArgs>();
  root.add(shell,
           {"ask", "Answer a question from memory",
            "inferscale ask \"What is the name of Mara's dog?\" --k 10 --scope user=alice\n"
            "  inferscale ask \"What is the name of Mara's dog?\" --compare --scope user=alice"},
           [&shell, args] { return run_ask(shell, *args); })
      .argument("question", args->question, "The question, - for stdin")
      .number("-k,--k", args->k, 0, kMaxFacts, "How many facts")
      .text("--filter", args->filter, "JSON", "Condition on the metadata (docs/cli.md)")
      .flag("--no-inject", args->no_inject, "Prefill all facts as text")
      .flag("--compare", args->compare,
            "The same prompt without memory, with text and injected, side by side")
      .number("--rounds", args->rounds, 1, 1000, "With --compare: measurements of each arm")
      .number("--max-tokens", args->max_tokens, 1, kMaxAnswerTokens, "Longest answer")
      .number("--temperature", args->temperature, 0.0F, 2.0F, "0 always takes the likeliest token")
      .number("--seed", args->seed, "Of the sampling, with --temperature")
      .flag("-q,--quiet", args->quiet, "No trace line after the answer")
      .flag("--no-wait", args->no_wait,
            "Do not encode the facts that were found without KV after the answer");
}

}  // namespace inferscale::cli
