#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/shell.h"

namespace CLI {
class App;
}

namespace inferscale::cli {

struct CommandText {
  const char* name;
  const char* summary;
  const char* example;  ///< printed under the help
};

/// Declares a command and its options. Hides the parser, whose headers take seconds to compile.
/// Names are as the parser writes them ("-k,--k"); targets hold the defaults and must live until
/// the command has run.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  /// A command below this one that takes the common options; `run` gives the exit code.
  Command add(Shell& shell, const CommandText& text, Shell::Action run);
  /// A command that only holds others.
  Command add_group(const CommandText& text);

  /// Options from here on stand under this title in the help.
  Command& title(const char* title);
  /// A required argument.
  Command& argument(const char* name, std::string& target, const char* help);
  /// Any number of arguments.
  Command& arguments(const char* name, std::vector<std::string>& target, const char* help);
  Command& text(const char* names, std::string& target, const char* type, const char* help);
  Command& text(const char* names, std::optional<std::string>& target, const char* type,
                const char* help);
  Command& choice(const char* names, std::string& target, const std::vector<std::string>& words,
                  const char* help);
  Command& number(const char* names, std::uint32_t& target, std::uint32_t lowest,
                  std::uint32_t highest, const char* help);
  Command& number(const char* names, std::optional<std::uint32_t>& target, std::uint32_t lowest,
                  std::uint32_t highest, const char* help);
  Command& number(const char* names, std::uint64_t& target, const char* help);
  Command& number(const char* names, float& target, float lowest, float highest, const char* help);
  Command& flag(const char* names, bool& target, const char* help);
  /// Counts how often it is given.
  Command& flag(const char* names, int& target, const char* help);

  /// The options of every command.
  void add_common_options(CommonOptions& options);

 private:
  CLI::App* app_;
  std::string title_ = "Options";
};

void add_import_command(Command& root, Shell& shell);
void add_add_command(Command& root, Shell& shell);
void add_search_command(Command& root, Shell& shell);
void add_ask_command(Command& root, Shell& shell);
void add_chat_command(Command& root, Shell& shell);
void add_list_command(Command& root, Shell& shell);
void add_get_command(Command& root, Shell& shell);
void add_update_command(Command& root, Shell& shell);
void add_delete_command(Command& root, Shell& shell);
void add_history_command(Command& root, Shell& shell);
void add_stats_command(Command& root, Shell& shell);
void add_doctor_command(Command& root, Shell& shell);
void add_calibrate_command(Command& root, Shell& shell);
void add_reencode_command(Command& root, Shell& shell);
void add_bench_command(Command& root, Shell& shell);
void add_eval_command(Command& root, Shell& shell);
void add_export_command(Command& root, Shell& shell);
void add_verify_command(Command& root, Shell& shell);
void add_repair_command(Command& root, Shell& shell);
void add_version_command(Command& root, Shell& shell);

}  // namespace inferscale::cli
