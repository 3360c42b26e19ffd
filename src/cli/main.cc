#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json_views.h"
#include "cli/logging.h"
#include "cli/status_line.h"
#include "cli/terminal_text.h"

namespace inferscale::cli {
namespace {

using AddCommand = void (*)(Command&, Shell&);
constexpr AddCommand kCommands[] = {
    add_import_command, add_add_command,       add_search_command,   add_ask_command,
    add_chat_command,   add_list_command,      add_get_command,      add_update_command,
    add_delete_command, add_history_command,   add_stats_command,    add_doctor_command,
    add_bench_command,  add_calibrate_command, add_reencode_command, add_verify_command,
    add_repair_command, add_export_command,    add_eval_command,     add_version_command,
};

int report_error(const Shell& shell, const Status& status) {
  const ErrorTableRow& row = error_row(status.code());
  if (shell.json()) {
    shell.print_json(json_error(status));
  } else {
    write_stderr_line(printable(fmt::format("inferscale: {}: {}", row.name, status.message())));
  }
  return row.exit_code;
}

/// The command line as far as it was understood, for "see ... --help".
std::string chosen_command(const CLI::App& app) {
  std::string name = "inferscale";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

std::string missing_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
  }
  std::string names;
  for (const CLI::App* const command : at->get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  const bool at_root = at == &app;
  const bool given = at_root && argc > 1 && argv[1][0] != '-';
  return (given ? fmt::format("no command \"{}\"", argv[1]) : std::string("no command given")) +
         "; use one of " + names;
}

int report_usage(const CLI::App& app, const Shell& shell, const CLI::ParseError& error, int argc,
                 char** argv) {
  const bool no_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
                          std::string(error.what()).find("subcommand") != std::string::npos;
  const std::string what = no_command ? missing_command(app, argc, argv) : error.what();
  return report_error(
      shell, invalid_argument(fmt::format("{} (see {} --help)", what, chosen_command(app))));
}

int report_unwritten() {
  write_stderr_line("inferscale: kUnavailable: the output could not be written");
  return error_row(StatusCode::kUnavailable).exit_code;
}

int run_action(Shell& shell) {
  if (const Status status = start_logging(shell.options().verbose); !status.ok()) {
    return report_error(shell, status);
  }
  const Result<int> result = shell.action()();
  shell.progress().finish();
  if (interrupted().load()) {
    if (!result.ok()) {
      report_error(shell, unavailable("interrupted: " + result.status().message()));
    }
    return interrupt_exit_code();
  }
  if (!result.ok()) {
    return report_error(shell, result.status());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return report_unwritten();
  }
  return *result;
}

/// A core file would hold what users stored, unencrypted, outside the data directory.
void forbid_core_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) == 0) {
    limit.rlim_cur = 0;
    (void)::setrlimit(RLIMIT_CORE, &limit);
  }
}

int run(int argc, char** argv) {
  forbid_core_files();
  Shell shell;
  CLI::App app("Memory for language models: facts are encoded once and injected as KV.",
               "inferscale");
  app.set_version_flag("--version", INFERSCALE_VERSION);
  app.footer(
      "\nExample:\n  inferscale import chat.jsonl --scope user=alice\n"
      "  inferscale ask \"Where does Mara live?\" --scope user=alice\n\n"
      "`inferscale COMMAND --help` shows the options and an example of each command.");
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  Command root(app);
  root.add_common_options(shell.options());
  for (const AddCommand add : kCommands) {
    add(root, shell);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      const int code = app.exit(error);  // --help, --version
      std::cout.flush();
      return std::cout.good() ? code : report_unwritten();
    }
    // Parsing stopped somewhere, perhaps before it came to --json.
    shell.options().json = std::any_of(argv + 1, argv + argc, [](const char* argument) {
      return std::string_view(argument) == "--json";
    });
    return report_usage(app, shell, error, argc, argv);
  }
  install_interrupt_handlers();
  return run_action(shell);
}

}  // namespace
}  // namespace inferscale::cli

int main(int argc, char** argv) {
  try {
    return inferscale::cli::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "inferscale: kInternal: %s\n", error.what());
    return inferscale::error_row(inferscale::StatusCode::kInternal).exit_code;
  }
}
