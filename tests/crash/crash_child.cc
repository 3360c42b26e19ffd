// The process that is killed: opens a data directory and works on it, telling on its standard
// output what it is about to do and what was acknowledged.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "crash/crash_service.h"
#include "crash/operation.h"
#include "support/fault_injector.h"
#include "support/faulty_file_system.h"
#include "support/faulty_sqlite_vfs.h"

namespace inferscale::testing {
namespace {

struct ChildOptions {
  CrashServiceOptions service;
  bool script = false;
  std::uint64_t seed = 1;
  std::uint64_t first_marker = 1000;
  std::uint64_t operations = 1'000'000;
  std::uint64_t kill_at = 0;  ///< number of the step; 0: never
  bool half = false;          ///< kills half way through a write
};

/// One write per line: a line that was told is told whole.
void tell(const std::string& word, const std::string& what) {
  const std::string line = word + " " + what + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    ::_exit(3);
  }
}

/// False when the operation failed, which nothing here gives it a reason to.
bool work(CrashService& service, const Operation& operation, std::vector<std::string>* added) {
  tell("begin", to_line(operation));
  auto outcome = perform(*service.service, service.core->store(), operation);
  if (!outcome.ok()) {
    tell("failed", outcome.status().to_string());
    return false;
  }
  *added = std::move(outcome).value();
  tell("done", nlohmann::json(*added).dump());
  return true;
}

bool run_script(CrashService& service) {
  std::vector<std::string> all_added;
  for (const Operation& operation : scripted_operations()) {
    std::vector<std::string> added;
    if (!work(service, resolve(operation, all_added), &added)) {
      return false;
    }
    all_added.insert(all_added.end(), added.begin(), added.end());
  }
  return true;
}

bool run_random(CrashService& service, const ChildOptions& options) {
  LiveIds live;
  for (const std::string& user : crash_users()) {
    const auto list = service.service->list(scope_of(user), "", 1000, "");
    if (!list.ok()) {
      tell("failed", list.status().to_string());
      return false;
    }
    for (const FactView& fact : list->facts) {
      live[user].push_back(fact.id);
    }
  }
  OperationSource source(options.seed, options.first_marker, live);
  for (std::uint64_t i = 0; i < options.operations; ++i) {
    const Operation operation = source.next();
    std::vector<std::string> added;
    if (!work(service, operation, &added)) {
      return false;
    }
    source.done(operation, added);
  }
  return true;
}

int run(ChildOptions options) {
  static FaultInjector faults;
  install_faulty_sqlite_vfs(faults);
  FaultyFileSystem files(posix_file_system(), faults);
  options.service.files = &files;
  if (options.kill_at > 0) {
    faults.arm({options.half ? Fault::kKillShort : Fault::kKill, options.kill_at});
  }
  bool worked = false;
  {
    auto service = open_crash_service(options.service);
    if (!service.ok()) {
      tell("failed", service.status().to_string());
      return 2;
    }
    tell("ready", std::to_string(faults.changes()));
    worked = options.script ? run_script(**service) : run_random(**service, options);
  }
  tell("steps", std::to_string(faults.changes()));
  return worked ? 0 : 2;
}

}  // namespace
}  // namespace inferscale::testing

int main(int argc, char** argv) {
  CLI::App app("works on a data directory until it is killed");
  inferscale::testing::ChildOptions options;
  app.add_option("--directory", options.service.directory)->required();
  app.add_option("--model", options.service.model, "for libllama; without it the fake engine");
  app.add_option("--disk-budget", options.service.disk_budget_bytes);
  app.add_flag("--background", options.service.background, "a thread encodes");
  app.add_flag("--script", options.script, "the scripted operations instead of random ones");
  app.add_option("--seed", options.seed);
  app.add_option("--first-marker", options.first_marker);
  app.add_option("--operations", options.operations);
  app.add_option("--kill-at", options.kill_at);
  app.add_flag("--half", options.half);
  CLI11_PARSE(app, argc, argv);
  return inferscale::testing::run(options);
}
