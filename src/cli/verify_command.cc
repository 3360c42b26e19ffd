#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "cli/command.h"
#include "cli/json_views.h"
#include "cli/paths.h"

namespace inferscale::cli {
namespace {

struct VerifyArgs {
  bool quick = false;
};

/// A catalog that cannot be opened is a finding as well, if it is its own damage that keeps it.
VerifyReport not_opened(const Status& status) {
  VerifyReport report;
  report.checks.push_back({"open", false, status.message(), 0});
  report.problems.push_back({"catalog_unreadable", status.message(),
                             "do what it says; repair needs a directory that can be opened"});
  report.counts.problems = 1;
  return report;
}

void print_report(const Shell& shell, const VerifyReport& report) {
  for (const VerifyCheck& check : report.checks) {
    shell.print(
        fmt::format("{:7} {:22} {}\n", check.ok ? "ok" : "FAILED", check.name, check.detail));
  }
  for (const VerifyProblem& problem : report.problems) {
    shell.print(fmt::format("{}: {} ({})\n", problem.kind, problem.what, problem.repair));
  }
  shell.print(report.ok ? "everything agrees\n"
                        : fmt::format("{} problems; `inferscale repair` mends what can be mended\n",
                                      report.counts.problems));
}

int exit_code(const VerifyReport& report) {
  return report.ok ? 0 : error_row(StatusCode::kDataLoss).exit_code;
}

/// Other commands make the directory; one that looks must not, lest a slip of the pen look healthy.
Status check_exists(const Shell& shell) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::filesystem::path directory,
                              data_directory(shell.options().data));
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) {
    return Status();
  }
  return not_found("no data directory at " + directory.string() + "; name it with --data");
}

Result<int> run_verify(Shell& shell, const VerifyArgs& args) {
  INFERSCALE_RETURN_IF_ERROR(check_exists(shell));
  const Result<std::unique_ptr<MemoryService>> service = shell.open_service(ModelNeed::kIfPresent);
  if (!service.ok() && service.status().code() != StatusCode::kDataLoss) {
    return service.status();
  }
  VerifyReport report;
  if (service.ok()) {
    INFERSCALE_ASSIGN_OR_RETURN(
        report, (*service)->verify(args.quick ? VerifyLevel::kQuick : VerifyLevel::kFull,
                                   shell.work_control()));
    shell.progress().finish();
  } else {
    report = not_opened(service.status());
  }
  if (shell.json()) {
    shell.print_json(json_text(report));
  } else {
    print_report(shell, report);
  }
  return exit_code(report);
}

Result<int> run_repair(Shell& shell) {
  INFERSCALE_RETURN_IF_ERROR(check_exists(shell));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<MemoryService> service,
                              shell.open_service(ModelNeed::kIfPresent));
  INFERSCALE_ASSIGN_OR_RETURN(const RepairReport report, service->repair(shell.work_control()));
  shell.progress().finish();
  if (shell.json()) {
    shell.print_json(json_text(report));
    return exit_code(report.after);
  }
  for (const RepairAction& action : report.actions) {
    shell.print(fmt::format("{}: {}\n", action.what, action.count));
  }
  if (report.actions.empty()) {
    shell.print("there was nothing to repair\n");
  }
  print_report(shell, report.after);
  return exit_code(report.after);
}

}  // namespace

void add_verify_command(Command& root, Shell& shell) {
  const auto args = std::make_shared<VerifyArgs>();
  root.add(shell,
           {"verify", "Check that catalog, records and files agree with each other",
            "inferscale verify --quick"},
           [&shell, args] { return run_verify(shell, *args); })
      .flag("--quick", args->quick, "Do not read every page, fact, vector and record");
}

void add_repair_command(Command& root, Shell& shell) {
  root.add(shell, {"repair", "Mend what verify finds, without losing a fact", "inferscale repair"},
           [&shell] { return run_repair(shell); });
}

}  // namespace inferscale::cli
