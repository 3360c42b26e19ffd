#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/report.h"
#include "inferscale/memory.h"

namespace inferscale::cli {

struct EncodeBenchOptions {
  std::vector<std::string> contexts = {"header", "primer:8", "window:8"};
  std::uint32_t facts = 64;  ///< encoded together
  std::uint32_t single = 8;  ///< encoded one by one
  std::string command;       ///< as it was called, for the report
  std::size_t table_width = 100;
};

/// What a fact costs to encode under each context, alone and in bulk, beside plain prefill of the
/// same tokens. Errors: as of MemoryService; kUnavailable on Ctrl-C.
[[nodiscard]] Result<BenchReport> run_encode_bench(const EncodeBenchOptions& options,
                                                   const MemoryOptions& memory,
                                                   const Progress& progress);

}  // namespace inferscale::cli
