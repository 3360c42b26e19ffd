#pragma once

#include <string>

#include "cli/bench/report.h"
#include "cli/shell.h"

namespace inferscale::cli {

/// Ends a measurement: the report to the file `out`, unless that is empty, and to stdout as --json
/// asks. Gives the exit code. Errors: kUnavailable (the file).
[[nodiscard]] Result<int> finish_report(Shell& shell, const std::string& out,
                                        const BenchReport& report);

}  // namespace inferscale::cli
