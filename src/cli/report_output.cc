#include "cli/report_output.h"

#include "base/file.h"
#include "base/hash.h"
#include "cli/status_line.h"

namespace inferscale::cli {

Result<int> finish_report(Shell& shell, const std::string& out, const BenchReport& report) {
  shell.progress().finish();
  if (!out.empty()) {
    INFERSCALE_RETURN_IF_ERROR(
        write_file_atomic(out, as_byte_span(report.file), Durability::kNone));
  }
  if (shell.json()) {
    shell.print_json(report.json);
  } else {
    shell.print(report.table);
  }
  return 0;
}

}  // namespace inferscale::cli
