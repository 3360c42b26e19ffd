// Every step of a scripted run fails in turn, as it does on a full disk, a broken one, or one that
// writes half: the call that meets it says so, nothing acknowledged is lost, and when the fault is
// gone all works again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "crash/check.h"
#include "crash/crash_directory.h"
#include "support/fault_injector.h"
#include "support/faulty_file_system.h"
#include "support/faulty_sqlite_vfs.h"

namespace inferscale::testing {
namespace {

FaultInjector& shared_faults() {
  static FaultInjector faults;
  static const bool installed = (install_faulty_sqlite_vfs(faults), true);
  (void)installed;
  return faults;
}

class CrashFault : public ::testing::Test {
 protected:
  /// Runs the script with a fault at step `plan.at`; false when the script has no such step.
  bool run(const FaultInjector::Plan& plan, const std::string& when);
  /// Every `stride`-th step, with a fault that lasts for that step or until it is healed.
  void run_all(Fault fault, bool reads, std::uint64_t stride);

  std::uint64_t runs_ = 0;
  std::uint64_t errors_ = 0;  // calls that met a fault and said so

 private:
  void expect_clear(const Status& status, const std::string& when);
  std::unique_ptr<CrashService> open_service(const CrashServiceOptions& options,
                                             const std::string& when);
  void run_until_error(CrashService& service, Oracle& oracle, const std::string& when);
  void expect_works(CrashService& service, Oracle& oracle, const std::string& when);

  FaultInjector& faults_ = shared_faults();
  FaultyFileSystem files_{posix_file_system(), faults_};
};

void CrashFault::expect_clear(const Status& status, const std::string& when) {
  ++errors_;
  EXPECT_TRUE(status.code() == StatusCode::kUnavailable ||
              status.code() == StatusCode::kResourceExhausted)
      << when << ": " << status.to_string();
  EXPECT_FALSE(status.message().empty()) << when;
}

std::unique_ptr<CrashService> CrashFault::open_service(const CrashServiceOptions& options,
                                                       const std::string& when) {
  auto service = open_crash_service(options);
  if (!service.ok()) {
    expect_clear(service.status(), when + " open");
    faults_.heal();
    service = open_crash_service(options);
    EXPECT_TRUE(service.ok()) << when << " open again: " << service.status().to_string();
  }
  return service.ok() ? std::move(*service) : nullptr;
}

void CrashFault::run_until_error(CrashService& service, Oracle& oracle, const std::string& when) {
  std::vector<std::string> all_added;
  for (const Operation& scripted : scripted_operations()) {
    const Operation operation = resolve(scripted, all_added);
    oracle.begin(operation);
    const auto added = perform(*service.service, service.core->store(), operation);
    if (!added.ok()) {
      expect_clear(added.status(), when + " " + to_line(operation));
      return;
    }
    oracle.acknowledge(*added);
    all_added.insert(all_added.end(), added->begin(), added->end());
  }
}

// Writes of every kind, in the service that met the fault.
void CrashFault::expect_works(CrashService& service, Oracle& oracle, const std::string& when) {
  const auto work = [&](const Operation& operation) {
    oracle.begin(operation);
    const auto added = perform(*service.service, service.core->store(), operation);
    EXPECT_TRUE(added.ok()) << when << " healed: " << added.status().to_string();
    if (added.ok()) {
      oracle.acknowledge(*added);
    }
    return added.ok() ? *added : std::vector<std::string>();
  };
  const auto ids = work({OperationKind::kAdd,
                         "eve",
                         {"eve sells lamps m1000900q", "eve likes tea m1000901q"},
                         {},
                         true,
                         false,
                         true});
  if (ids.size() == 2) {
    work({OperationKind::kUpdate,
          "eve",
          {"eve sells birds m1000902q"},
          {ids[0]},
          false,
          false,
          true});
    work({OperationKind::kDelete, "eve", {}, {ids[1]}, false, false, true});
  }
}

bool CrashFault::run(const FaultInjector::Plan& plan, const std::string& when) {
  const CrashDirectory directory;
  CrashServiceOptions options;
  options.directory = directory.data();
  options.files = &files_;
  Oracle oracle;
  faults_.arm(plan);
  bool met = false;
  {
    const auto service = open_service(options, when);
    if (service == nullptr) {
      return true;
    }
    run_until_error(*service, oracle, when);
    met = faults_.faults() > 0;
    faults_.heal();
    const auto found = service->state(oracle);
    EXPECT_TRUE(found.ok()) << when << ": " << found.status().to_string();
    EXPECT_TRUE(found.ok() && oracle.settle(*found)) << when;
    expect_works(*service, oracle, when);
    expect_clean(check_service(*service, oracle, directory.data().parent_path() / "fresh", plan.at),
                 when + " healed");
  }
  options.files = nullptr;
  expect_clean(check_copy(options, oracle, plan.at), when + " opened again");
  ++runs_;
  return met;
}

void CrashFault::run_all(Fault fault, bool reads, std::uint64_t stride) {
  for (const bool until_healed : {false, true}) {
    for (std::uint64_t step = 1;; step += stride) {
      const std::string when =
          fmt::format("{} {}{}", reads ? "read" : "step", step, until_healed ? " and on" : "");
      const bool met = run({fault, step, reads, until_healed}, when);
      if (HasFailure()) {
        return;
      }
      if (!met) {
        break;
      }
    }
  }
  fmt::print("{} runs, {} calls that failed and said so\n", runs_, errors_);
}

TEST_F(CrashFault, FullDisk) {
  run_all(Fault::kNoSpace, false, setting("INFERSCALE_CRASH_STRIDE", 29));
}

TEST_F(CrashFault, BrokenDisk) {
  run_all(Fault::kIo, false, setting("INFERSCALE_CRASH_STRIDE", 29));
}

TEST_F(CrashFault, ShortWrites) {
  run_all(Fault::kShort, false, setting("INFERSCALE_CRASH_STRIDE", 29));
}

TEST_F(CrashFault, BrokenReads) {
  run_all(Fault::kIo, true, setting("INFERSCALE_CRASH_STRIDE", 29));
}

TEST_F(CrashFault, ShortReads) {
  run_all(Fault::kShort, true, setting("INFERSCALE_CRASH_STRIDE", 29));
}

}  // namespace
}  // namespace inferscale::testing
