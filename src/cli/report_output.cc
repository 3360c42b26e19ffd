#include "cli/report_output.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
#include "base/hash.h"
#include "cli/status_line.h"

namespace inferscale::cli {

Status check_report_file(const std::string& out) {
  if (out.empty()) {
    return Status();
  }
  std::error_code ignored;
  const std::filesystem::path path = out;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (!std::filesystem::is_directory(folder, ignored)) {
    return not_found(fmt::format("--out: there is no folder {}; make it first", folder.string()));
  }
  if (std::filesystem::is_directory(path, ignored)) {
    return invalid_argument(fmt::format("--out: {} is a folder; name a file", out));
  }
  return Status();
}

Result<int> finish_report(Shell& shell, const std::string& out, const BenchReport& report) {
  shell.progress().finish();
  // First what cannot get lost: measuring may have taken hours.
  if (shell.json()) {
    shell.print_json(report.json);
  } else {
    shell.print(report.table);
  }
  if (!out.empty()) {
    INFERSCALE_RETURN_IF_ERROR(
        write_file_atomic(out, as_byte_span(report.file), Durability::kNone));
  }
  return 0;
}

}  // namespace inferscale::cli
