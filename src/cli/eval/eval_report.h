#pragma once

#include <string>

#include "cli/bench/report.h"
#include "cli/eval/evaluation.h"

namespace inferscale::cli {

/// What a report says about where its figures come from.
struct EvalProvenance {
  std::string command;
  std::string model;  ///< name and file
  std::string library;
  std::string started;  ///< RFC 3339
  std::size_t table_width = 100;
};

/// Means with intervals over the results in the log, by arm, in the order of the arms; the JSON is
/// described in docs/accuracy.md. It quotes neither questions nor answers.
[[nodiscard]] BenchReport make_eval_report(const EvalOptions& options, const EvalSet& set,
                                           const MemoryOptions& memory, const ResultLog& log,
                                           const EvalProvenance& provenance);

}  // namespace inferscale::cli
