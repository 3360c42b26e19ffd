#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "base/file.h"
#include "memory/data_files.h"
#include "memory/record_audit.h"
#include "memory/service.h"
#include "memory/verify.h"

namespace inferscale {
namespace {

void note(RepairReport& report, std::string what, std::uint64_t count) {
  if (count > 0) {
    report.actions.push_back({std::move(what), count});
  }
}

/// Holds the record mutex: no commit may pass between dropping an entry and erasing its record.
Status repair_catalog(ServiceCore& core, const WorkControl& control, RepairReport& report) {
  const GoOn go_on = [&] { return !is_cancelled(control); };
  const std::lock_guard lock(core.record_mutex());
  Result<CatalogRepair> repaired = core.catalog().repair(go_on);
  if (!repaired.ok()) {
    return repaired.status().code() == StatusCode::kDataLoss
               ? data_loss(repaired.status().message() +
                           "; what can still be read can be saved with `export`")
               : repaired.status();
  }
  for (CatalogRepair::Action& action : repaired->actions) {
    note(report, std::move(action.what), action.count);
  }
  return core.store().erase(repaired->records).status();
}

Status repair_records(ServiceCore& core, const WorkControl& control, RepairReport& report) {
  INFERSCALE_ASSIGN_OR_RETURN(const RecordAudit audit, audit_records(core, true, control));
  note(report, "damaged records dropped; they are encoded again when wanted", audit.damaged.size());
  {
    const std::lock_guard lock(core.record_mutex());
    INFERSCALE_RETURN_IF_ERROR(core.store().erase(audit.orphans).status());
  }
  note(report, "records erased that no fact names", audit.orphans.size());
  if (audit.different.empty()) {
    return Status();
  }
  const std::lock_guard lock(core.record_mutex());
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<RecordKey> dropped,
                              core.catalog().drop_records(audit.different));
  INFERSCALE_RETURN_IF_ERROR(core.store().erase(dropped).status());
  note(report, "record entries dropped whose record was another; their facts are encoded again",
       audit.different.size());
  return Status();
}

/// What stands where the store looks for a file of its own keeps it from erasing. It was not made
/// by InferScale: it is moved aside, not removed, and a link is not followed.
Status set_impostors_aside(ServiceCore& core, RepairReport& report) {
  const std::filesystem::path& directory = core.options().directory;
  INFERSCALE_ASSIGN_OR_RETURN(const DataFiles files, list_data_files(directory));
  for (const std::filesystem::path& path : files.impostors) {
    std::error_code error;
    const std::string name = std::string(kSetAsidePrefix) + path.filename().string();
    std::filesystem::path target = directory / name;
    for (int i = 2; exists(symlink_status(target, error)); ++i) {
      target = directory / fmt::format("{}-{}", name, i);
    }
    std::filesystem::rename(path, target, error);
    if (error) {
      return unavailable(fmt::format("cannot move {} to {}: {}; move it away by hand",
                                     path.string(), target.string(), error.message()));
    }
    note(report,
         fmt::format("{} is no file of the store: moved to {}; look what it is, and remove it",
                     path.string(), target.string()),
         1);
  }
  return Status();
}

Status repair_files(ServiceCore& core, RepairReport& report) {
  INFERSCALE_ASSIGN_OR_RETURN(const DataFiles files, list_data_files(core.options().directory));
  for (const std::filesystem::path& path : files.open_to_others) {
    INFERSCALE_RETURN_IF_ERROR(make_private(path));
  }
  note(report, "modes of files and folders set to 0600 and 0700", files.open_to_others.size());
  for (const std::filesystem::path& path : files.leftovers) {
    INFERSCALE_RETURN_IF_ERROR(wipe_file(path));
  }
  note(report, "temporary files erased", files.leftovers.size());
  return Status();
}

}  // namespace

Result<RepairReport> repair_data(ServiceCore& core, const WorkControl& control) {
  RepairReport report;
  INFERSCALE_RETURN_IF_ERROR(set_impostors_aside(core, report));
  INFERSCALE_RETURN_IF_ERROR(repair_catalog(core, control, report));
  INFERSCALE_RETURN_IF_ERROR(repair_records(core, control, report));
  INFERSCALE_RETURN_IF_ERROR(repair_files(core, report));
  INFERSCALE_ASSIGN_OR_RETURN(report.after, verify_data(core, VerifyLevel::kFull, control));
  return report;
}

Result<RepairReport> Service::repair(const WorkControl& control) {
  return repair_data(*core_, control);
}

}  // namespace inferscale
