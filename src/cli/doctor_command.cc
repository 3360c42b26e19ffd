#include <fmt/format.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/json_views.h"

namespace inferscale::cli {
namespace {

struct Diagnosis {
  std::vector<DoctorCheck> checks;
  StatusCode failure = StatusCode::kUnavailable;
};

/// What keeps the service from opening is a finding too.
Diagnosis diagnose(const Shell& shell) {
  Diagnosis diagnosis;
  const Result<std::unique_ptr<MemoryService>> service = shell.open_service(ModelNeed::kIfPresent);
  if (service.ok()) {
    diagnosis.checks = (*service)->doctor();
  } else {
    diagnosis.checks.push_back({"open", false, service.status().to_string()});
    diagnosis.failure = service.status().code();
  }
  return diagnosis;
}

Result<int> run_doctor(Shell& shell) {
  const Diagnosis diagnosis = diagnose(shell);
  const bool all_ok = std::all_of(diagnosis.checks.begin(), diagnosis.checks.end(),
                                  [](const DoctorCheck& check) { return check.ok; });
  if (shell.json()) {
    shell.print_json(json_text(diagnosis.checks, all_ok));
  } else {
    for (const DoctorCheck& check : diagnosis.checks) {
      shell.print(
          fmt::format("{:7} {:22} {}\n", check.ok ? "ok" : "FAILED", check.name, check.detail));
    }
    shell.print(all_ok ? "all checks passed\n" : "some checks failed\n");
  }
  return all_ok ? 0 : error_row(diagnosis.failure).exit_code;
}

}  // namespace

void add_doctor_command(Command& root, Shell& shell) {
  root.add(
      shell,
      {"doctor", "Test the installation: disk, models, state layout, rope", "inferscale doctor"},
      [&shell] { return run_doctor(shell); });
}

}  // namespace inferscale::cli
