#pragma once

#include <string>

namespace inferscale::cli {

/// What a benchmark found.
struct BenchReport {
  std::string json;   ///< one line, for --json
  std::string file;   ///< the same, indented, for --out
  std::string table;  ///< for people
};

}  // namespace inferscale::cli
