#pragma once

#include <cstdint>
#include <string>

#include "cli/bench/report.h"
#include "inferscale/memory.h"

namespace inferscale::cli {

struct StoreBenchOptions {
  std::uint32_t records = 500;
  std::uint32_t tokens = 28;  ///< of a record
  std::string command;        ///< as it was called, for the report
  std::size_t table_width = 100;
};

/// The disk tier with records of SmolLM2-135M's shape beside one plain file of the same bytes, in
/// the same directory and run. Needs twice the records' size below the temporary directory, no
/// model. Errors: kUnavailable (disk, Ctrl-C), kResourceExhausted (no space).
[[nodiscard]] Result<BenchReport> run_store_bench(const StoreBenchOptions& options,
                                                  const Progress& progress);

}  // namespace inferscale::cli
