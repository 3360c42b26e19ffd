#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "inferscale/kv_record.h"

namespace inferscale {

/// A finding of `Catalog::check`.
struct CatalogProblem {
  std::string kind;    ///< one word, stable ("keyword_index")
  std::string what;    ///< which row, and what is wrong with it; never what users stored
  std::string repair;  ///< what `repair` does about it, or what the operator has to do
};
struct CatalogCheck {
  std::string name;
  std::uint64_t checked = 0;   ///< rows that were looked at
  std::uint64_t problems = 0;  ///< also those that are not listed one by one
};
struct CatalogReport {
  std::vector<CatalogCheck> checks;
  std::vector<CatalogProblem> problems;  ///< at most kMaxListedProblems of each check
};
inline constexpr std::size_t kMaxListedProblems = 100;

/// What `Catalog::repair` did.
struct CatalogRepair {
  struct Action {
    std::string what;
    std::uint64_t count = 0;  ///< rows
  };
  std::vector<Action> actions;     ///< empty when there was nothing to do
  std::vector<RecordKey> records;  ///< of dropped entries: they must leave the KV store
};

/// Asked between steps of long work: false ends it with kUnavailable.
using GoOn = std::function<bool()>;

}  // namespace inferscale
