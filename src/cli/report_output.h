#pragma once

#include <string>

#include "cli/bench/report.h"
#include "cli/shell.h"

namespace inferscale::cli {

/// Whether a report can go to the file `out`, asked before anything is measured. Errors: kNotFound
/// (its folder), kInvalidArgument (a folder).
[[nodiscard]] Status check_report_file(const std::string& out);

/// Ends a measurement: the report to stdout as --json asks, and to the file `out`, unless that is
/// empty. Gives the exit code. Errors: kUnavailable (the file).
[[nodiscard]] Result<int> finish_report(Shell& shell, const std::string& out,
                                        const BenchReport& report);

}  // namespace inferscale::cli
