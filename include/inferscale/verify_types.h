#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace inferscale {

enum class VerifyLevel : std::uint8_t {
  kQuick,  ///< structure, references and what is where
  kFull,   ///< also every page, fact, vector and record
};

struct VerifyCheck {
  std::string name;
  bool ok = false;
  std::string detail;
  std::uint64_t count = 0;  ///< things that were looked at
};

struct VerifyProblem {
  std::string kind;    ///< one word, stable
  std::string what;    ///< never what users stored
  std::string repair;  ///< what `repair` does about it, or what the operator has to do
};

struct VerifyCounts {
  std::uint64_t facts = 0;
  std::uint64_t entries = 0;       ///< current record entries of the catalog
  std::uint64_t records = 0;       ///< records in any tier
  std::uint64_t records_read = 0;  ///< of these, read and found sound
  std::uint64_t cut_off = 0;       ///< ends of files, half written or damaged, cut off by the start
  std::uint64_t encode_again = 0;  ///< entries whose record is in no tier: no error, KV is a cache
  std::uint64_t foreign_files = 0;  ///< in the data directory, but not InferScale's: no error
  std::uint64_t problems = 0;       ///< all, listed or not
};

struct VerifyReport {
  bool ok = false;
  std::vector<VerifyCheck> checks;
  std::vector<VerifyProblem> problems;  ///< at most some hundred of each check
  VerifyCounts counts;
};

struct RepairAction {
  std::string what;
  std::uint64_t count = 0;
};

struct RepairReport {
  std::vector<RepairAction> actions;  ///< empty when there was nothing to repair
  VerifyReport after;                 ///< full; what could not be repaired is in its problems
};

}  // namespace inferscale
