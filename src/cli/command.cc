#include "cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace inferscale::cli {
namespace {

constexpr std::uint32_t kMaxThreads = 512;

/// CLI11's own check with words that people read: "9 is not a number from 0 to 2".
template <typename Number>
CLI::Validator in_range(Number lowest, Number highest) {
  return CLI::Validator(
      [lowest, highest](const std::string& text) {
        Number value{};
        const bool good = CLI::detail::lexical_cast(text, value) && value >= lowest &&
                          value <= highest && text.front() != '-';
        return good ? std::string()
                    : fmt::format("{} is not a number from {} to {}", text, lowest, highest);
      },
      "");
}

}  // namespace

Command Command::add(Shell& shell, const CommandText& text, Shell::Action run) {
  Command command = add_group(text);
  command.app_->require_subcommand(0);
  command.title("Common options").add_common_options(shell.options());
  command.app_->callback([&shell, run = std::move(run)] { shell.set_action(run); });
  command.title("Options");
  return command;
}

Command Command::add_group(const CommandText& text) {
  CLI::App* const app = app_->add_subcommand(text.name, text.summary);
  app->footer(fmt::format("\nExample:\n  {}\n", text.example));
  app->require_subcommand(1);
  return Command(*app);
}

Command& Command::title(const char* title) {
  title_ = title;
  return *this;
}

Command& Command::argument(const char* name, std::string& target, const char* help) {
  app_->add_option(name, target, help)->required();
  return *this;
}

Command& Command::arguments(const char* name, std::vector<std::string>& target, const char* help) {
  app_->add_option(name, target, help);
  return *this;
}

Command& Command::text(const char* names, std::string& target, const char* type, const char* help) {
  CLI::Option* const option = app_->add_option(names, target, help)->type_name(type)->group(title_);
  if (!target.empty()) {
    option->capture_default_str();
  }
  return *this;
}

Command& Command::text(const char* names, std::optional<std::string>& target, const char* type,
                       const char* help) {
  app_->add_option(names, target, help)->type_name(type)->group(title_);
  return *this;
}

Command& Command::choice(const char* names, std::string& target,
                         const std::vector<std::string>& words, const char* help) {
  app_->add_option(names, target, help)
      ->check(CLI::IsMember(words))
      ->capture_default_str()
      ->group(title_);
  return *this;
}

Command& Command::number(const char* names, std::uint32_t& target, std::uint32_t lowest,
                         std::uint32_t highest, const char* help) {
  app_->add_option(names, target, fmt::format("{} [{} to {}]", help, lowest, highest))
      ->check(in_range(lowest, highest))
      ->type_name("N")
      ->capture_default_str()
      ->group(title_);
  return *this;
}

Command& Command::number(const char* names, std::optional<std::uint32_t>& target,
                         std::uint32_t lowest, std::uint32_t highest, const char* help) {
  app_->add_option(names, target, fmt::format("{} [{} to {}]", help, lowest, highest))
      ->check(in_range(lowest, highest))
      ->type_name("N")
      ->group(title_);
  return *this;
}

Command& Command::number(const char* names, std::uint64_t& target, const char* help) {
  app_->add_option(names, target, help)->type_name("N")->capture_default_str()->group(title_);
  return *this;
}

Command& Command::number(const char* names, float& target, float lowest, float highest,
                         const char* help) {
  app_->add_option(names, target, fmt::format("{} [{} to {}]", help, lowest, highest))
      ->check(in_range(lowest, highest))
      ->type_name("N")
      ->capture_default_str()
      ->group(title_);
  return *this;
}

Command& Command::flag(const char* names, bool& target, const char* help) {
  app_->add_flag(names, target, help)->group(title_);
  return *this;
}

Command& Command::flag(const char* names, int& target, const char* help) {
  app_->add_flag(names, target, help)->group(title_);
  return *this;
}

void Command::add_common_options(CommonOptions& options) {
  title("Common options");
  app_->add_option("--data", options.data,
                   "Data directory [$INFERSCALE_HOME, else ~/.local/share/inferscale]")
      ->check(CLI::Validator(
          [](const std::string& path) {
            return path.empty() ? std::string(
                                      "empty; give a directory, or leave it out for the "
                                      "default")
                                : std::string();
          },
          ""))
      ->type_name("DIR")
      ->group(title_);
  text("--scope", options.scope, "SCOPE",
       "Whose memory: user=NAME[,agent=NAME][,run=NAME][,tenant=NAME]");
  flag("--json", options.json, "One JSON document on stdout");
  flag("--progress", options.progress, "Show progress with --json too");
  flag("-v,--verbose", options.verbose, "Log more; twice for everything");
  title("Models and budgets");
  text("--model", options.model, "FILE",
       "Served model, a GGUF file [$INFERSCALE_MODEL, else the one that is installed]");
  text("--embedder", options.embedder, "FILE",
       "Embedding model, a GGUF file, or none: keywords alone [$INFERSCALE_EMBEDDER]");
  text("--engine", options.engine, "vllm=URL",
       "A vLLM server that runs the model instead: vllm=http://HOST:PORT"
       "[,control=URL][,control-file=PATH] (docs/vllm.md)");
  text("--context", options.context, "CONTEXT",
       "What a fact is encoded behind: header, alone, or primer, names, turns, window, near, "
       "log or chain with a number [what reencode chose, else window:8]");
  text("--top-j", options.top_j, "auto|N", "Best facts prefilled as text: auto, or a number");
  choice("--codec", options.codec, {"f16", "bf16", "f32", "q8", "fp8_e4m3", "q4"},
         "Elements of new records: q8 and fp8_e4m3 take half of f16, q4 about 30 %");
  number("--threads", options.threads, 0, kMaxThreads,
         "Threads of the engine; 0 is one for each core");
  text("--host-budget", options.host_budget, "SIZE", "Memory that records may take");
  text("--disk-budget", options.disk_budget, "SIZE", "Disk that records may take; 0 keeps none");
}

}  // namespace inferscale::cli
