#include "memory/verify.h"

#include <fmt/format.h>

#include "memory/data_files.h"
#include "memory/record_audit.h"
#include "memory/service.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxNamed = 100;  // problems of one kind that are listed one by one

void add_check(VerifyReport& report, std::string name, std::uint64_t looked_at,
               std::uint64_t problems, std::string detail) {
  report.counts.problems += problems;
  report.checks.push_back({std::move(name), problems == 0, std::move(detail), looked_at});
}

std::string summary(std::uint64_t looked_at, const char* noun, std::uint64_t problems) {
  return problems == 0 ? fmt::format("{} {}", looked_at, noun)
                       : fmt::format("{} {}, {} problems", looked_at, noun, problems);
}

Status verify_catalog(ServiceCore& core, bool full, const WorkControl& control,
                      VerifyReport& report) {
  const GoOn go_on = [&] { return !is_cancelled(control); };
  if (control.progress) {
    control.progress("catalog", 0, 1);
  }
  INFERSCALE_ASSIGN_OR_RETURN(CatalogReport found, core.catalog().check(full, go_on));
  for (CatalogCheck& check : found.checks) {
    if (check.name == "facts") {
      report.counts.facts = check.checked;
    }
    const char* const noun = check.name == "database" ? "pages" : "rows";
    std::string detail = summary(check.checked, noun, check.problems);
    add_check(report, "catalog_" + check.name, check.checked, check.problems, std::move(detail));
  }
  for (CatalogProblem& problem : found.problems) {
    report.problems.push_back(
        {std::move(problem.kind), std::move(problem.what), std::move(problem.repair)});
  }
  if (control.progress) {
    control.progress("catalog", 1, 1);
  }
  return Status();
}

void list_keys(const std::vector<RecordKey>& keys, const char* kind, const char* what,
               const char* repair, VerifyReport& report) {
  for (std::size_t i = 0; i < std::min(keys.size(), kMaxNamed); ++i) {
    report.problems.push_back(
        {kind, fmt::format("record {}: {}", keys[i].value.to_hex(), what), repair});
  }
}

Status verify_records(ServiceCore& core, bool full, const WorkControl& control,
                      VerifyReport& report) {
  INFERSCALE_ASSIGN_OR_RETURN(const RecordAudit audit, audit_records(core, full, control));
  list_keys(audit.orphans, "orphan_record", "in the store, but no entry of the catalog names it",
            "repair erases it", report);
  list_keys(audit.damaged, "damaged_record", "its bytes do not match their checksums",
            "none needed: it was dropped when it was read, and is encoded again when wanted",
            report);
  list_keys(audit.different, "different_record", "not what its entry describes",
            "repair drops the entry and the record; the fact is text until it is encoded again",
            report);
  report.counts.entries = audit.entries;
  report.counts.records = audit.records;
  report.counts.records_read = audit.sound;
  report.counts.encode_again = audit.missing;
  for (const TierStats& tier : core.store().stats().tiers) {
    report.counts.cut_off += tier.torn;
  }
  const std::uint64_t problems =
      audit.orphans.size() + audit.damaged.size() + audit.different.size();
  add_check(report, "records", audit.records, problems,
            fmt::format("{} records in the store, {} read and sound; {} entries, {} of them to be "
                        "encoded again{}{}",
                        audit.records, audit.sound, audit.entries, audit.missing,
                        report.counts.cut_off == 0
                            ? ""
                            : fmt::format("; {} ends of files, half written or damaged, were cut "
                                          "off when the directory was opened",
                                          report.counts.cut_off),
                        problems == 0 ? "" : fmt::format("; {} problems", problems)));
  return Status();
}

void list_paths(const std::vector<std::filesystem::path>& paths, const char* kind, const char* what,
                const char* repair, VerifyReport& report) {
  for (std::size_t i = 0; i < std::min(paths.size(), kMaxNamed); ++i) {
    report.problems.push_back({kind, fmt::format("{}: {}", paths[i].string(), what), repair});
  }
}

Status verify_files(ServiceCore& core, VerifyReport& report) {
  INFERSCALE_ASSIGN_OR_RETURN(const DataFiles files, list_data_files(core.options().directory));
  list_paths(files.open_to_others, "file_mode", "its mode is not 0600 (a folder's: 0700)",
             "repair sets it", report);
  list_paths(files.leftovers, "leftover_file", "the temporary file of a write that was cut off",
             "repair erases it", report);
  list_paths(files.odd, "odd_file", "neither a file nor a folder",
             "InferScale never makes one and does not follow it: remove it", report);
  list_paths(files.unknown, "unknown_file", "not a file that the store writes; it may hold KV",
             "deletes do not reach it: look what it is, and remove it", report);
  list_paths(files.impostors, "odd_file", "bears the name of a file of the store, and is none",
             "repair moves it out of kv/ into the data directory: look what it is, and remove it",
             report);
  report.counts.foreign_files = files.foreign.size();
  const std::uint64_t problems = files.open_to_others.size() + files.leftovers.size() +
                                 files.odd.size() + files.unknown.size() + files.impostors.size();
  std::string detail = summary(files.count, "files and folders", problems);
  for (const std::filesystem::path& path : files.foreign) {
    detail += fmt::format("{}{}", &path == files.foreign.data() ? "; not InferScale's: " : ", ",
                          path.filename().string());
    if (detail.size() > 400) {
      detail += ", ...";
      break;
    }
  }
  add_check(report, "files", files.count, problems, std::move(detail));
  return Status();
}

}  // namespace

Result<VerifyReport> verify_data(ServiceCore& core, VerifyLevel level, const WorkControl& control) {
  const bool full = level == VerifyLevel::kFull;
  VerifyReport report;
  INFERSCALE_RETURN_IF_ERROR(verify_catalog(core, full, control, report));
  INFERSCALE_RETURN_IF_ERROR(verify_records(core, full, control, report));
  INFERSCALE_RETURN_IF_ERROR(verify_files(core, report));
  report.ok = report.counts.problems == 0;
  return report;
}

Result<VerifyReport> Service::verify(VerifyLevel level, const WorkControl& control) {
  return verify_data(*core_, level, control);
}

}  // namespace inferscale
