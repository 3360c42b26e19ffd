#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "base/utf8.h"
#include "cli/ask_command.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json_views.h"
#include "cli/terminal_text.h"

namespace inferscale::cli {
namespace {

struct ChatArgs {
  std::uint32_t k = 10;
  bool no_inject = false;
  bool quiet = false;
  std::uint32_t max_tokens = 256;
  float temperature = 0;
};

constexpr const char* kHelp =
    "/facts           the facts behind the last answer\n"
    "/remember TEXT   add a fact\n"
    "/help            this\n"
    "/quit            leave (so does the end of the input)\n";

/// Reads lines, answers each, keeps the exit code of the last failure.
class ChatLoop {
 public:
  ChatLoop(Shell& shell, const ChatArgs& args, MemoryService& service, Scope scope, Chat& chat)
      : shell_(shell), args_(args), service_(service), scope_(std::move(scope)), chat_(chat) {}

  int run() {
    std::string line;
    while (!interrupted() && next_line(line)) {
      const std::string words = find_invalid_utf8(line) == std::string_view::npos
                                    ? single_line(line)
                                    : line;  // refused, with the reason, where it is used
      if (words.empty()) {
        continue;
      }
      if (words == "/quit" || words == "/exit") {
        break;
      }
      const Status status = words[0] == '/' ? command(words) : answer(words);
      if (!status.ok() && !interrupted()) {
        report(status);
      }
    }
    return exit_code_;
  }

 private:
  bool next_line(std::string& line) const {
    if (isatty(STDIN_FILENO) == 1 && !shell_.json()) {
      std::fputs("> ", stderr);
    }
    return static_cast<bool>(std::getline(std::cin, line));
  }

  Status answer(const std::string& words) {
    std::function<bool(std::string_view)> on_text;
    if (!shell_.json()) {
      on_text = stream_to_stdout(shell_);
    }
    INFERSCALE_ASSIGN_OR_RETURN(last_, chat_.say(words, on_text, &interrupted()));
    if (shell_.json()) {
      shell_.print_json(json_text(last_));
      return {};
    }
    shell_.print("\n");
    if (!args_.quiet) {
      shell_.note(trace_line(last_));
    }
    return {};
  }

  Status command(const std::string& words) {
    constexpr std::string_view kRemember = "/remember ";
    if (words == "/help") {
      shell_.note(kHelp);
      return {};
    }
    if (words == "/facts") {
      for (const UsedFact& fact : last_.facts) {
        shell_.note(fmt::format("{:>3}  {:8}  {}", fact.rank, fact.injected ? "injected" : "text",
                                single_line(fact.text)));
      }
      return {};
    }
    if (words.substr(0, kRemember.size()) == kRemember) {
      return remember(words.substr(kRemember.size()));
    }
    return invalid_argument(fmt::format("no command {}; /help lists them", shorten(words, 40)));
  }

  Status remember(const std::string& text) {
    FactInput fact;
    fact.text = text;
    // Encoded while the user reads on.
    INFERSCALE_ASSIGN_OR_RETURN(const AddReply reply,
                                service_.add(scope_, {}, std::span(&fact, 1), false, {}));
    if (!reply.errors.empty()) {
      return Status(reply.errors[0].code, reply.errors[0].message);
    }
    shell_.note(reply.facts_added > 0 ? "remembered" : "known already");
    return {};
  }

  void report(const Status& status) {
    exit_code_ = error_row(status.code()).exit_code;
    if (shell_.json()) {
      shell_.print_json(json_error(status));
    } else {
      shell_.note("inferscale: " + status.to_string());
    }
  }

  Shell& shell_;
  const ChatArgs& args_;
  MemoryService& service_;
  const Scope scope_;
  Chat& chat_;
  AskReply last_;
  int exit_code_ = 0;
};

Result<int> run_chat(Shell& shell, const ChatArgs& args) {
  ChatOptions options;
  INFERSCALE_ASSIGN_OR_RETURN(options.scope, shell.scope());
  INFERSCALE_ASSIGN_OR_RETURN(options.top_j, shell.top_j());
  options.k = args.k;
  options.inject = !args.no_inject;
  options.max_tokens = args.max_tokens;
  options.temperature = args.temperature;
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kRequired, true));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Chat> chat, service->open_chat(options));
  if (isatty(STDIN_FILENO) == 1) {
    shell.note("Ask about what you remember; /help lists commands.");
  }
  return ChatLoop(shell, args, *service, options.scope, *chat).run();
}

}  // namespace

void add_chat_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<ChatArgs>();
  root.add(shell,
           {"chat", "Talk, line by line; what was said stays in the cache",
            "inferscale chat --scope user=alice"},
           [&shell, args] { return run_chat(shell, *args); })
      .number("-k,--k", args->k, 0, 1000, "How many facts a turn looks for")
      .flag("--no-inject", args->no_inject, "Prefill all facts as text")
      .number("--max-tokens", args->max_tokens, 1, 8192, "Longest answer")
      .number("--temperature", args->temperature, 0.0F, 2.0F, "0 always takes the likeliest token")
      .flag("-q,--quiet", args->quiet, "No trace lines after the answers");
}

}  // namespace inferscale::cli
