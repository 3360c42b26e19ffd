#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/report.h"
#include "inferscale/memory.h"

namespace inferscale::cli {

struct TtftOptions {
  std::vector<std::uint32_t> k = {0, 5, 10, 20, 50};
  std::uint32_t top_j = 0;
  std::uint32_t repeat = 5;
  std::uint64_t seed = 1;
  bool warm = false;    ///< also with header and facts in the engine's own cache
  std::string command;  ///< as it was called, for the report
  std::size_t table_width = 100;
};

/// Time to first token without facts, with facts as text and injected, interleaved in random order
/// within each round, after a warm-up round. Gives the report of docs/cli.md. Ends early, with
/// kUnavailable, on Ctrl-C.
[[nodiscard]] Result<BenchReport> run_ttft_bench(const TtftOptions& options,
                                                 const MemoryOptions& memory,
                                                 const WorkControl& control);

}  // namespace inferscale::cli
