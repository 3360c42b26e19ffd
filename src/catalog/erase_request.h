#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "catalog/filter.h"
#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "inferscale/types.h"

namespace inferscale {

/// Names one version of one fact: what an encode job attended to.
struct FactRef {
  std::string id;
  std::uint32_t version = 0;
  friend bool operator==(const FactRef&, const FactRef&) = default;
};

/// What to erase. Exactly one of `ids`, `filter` and `whole_scope` chooses the facts; what is
/// shared with the scope is never among them.
struct EraseRequest {
  Scope scope;
  std::vector<std::string> ids;
  std::optional<Filter> filter;  ///< facts that match
  bool whole_scope = false;      ///< all facts, and all turns unless `keep_turns`
  bool old_versions = false;  ///< of these facts only what was superseded: text, metadata, history,
                              ///< and the records that saw it
  bool keep_turns = false;
  bool dry_run = false;  ///< counts what would go, and erases nothing
};

/// A fact that was erased, or (`old_versions`) whose versions before `version` were.
struct ErasedFact {
  std::string id;
  Scope scope;
  std::uint32_t version = 0;
};

struct EraseOutcome {
  std::uint64_t facts = 0, versions = 0, history = 0, vectors = 0, keywords = 0, turns = 0;
  std::vector<ErasedFact> erased;
  std::vector<RecordKey> records;   ///< of the erased facts and of everything that saw them
  std::vector<FactRef> dependants;  ///< live facts that lost their record
  /// Whose things went, each with its epoch after the erase; none where nothing went.
  std::vector<OwnerEpoch> owners;
  /// Read again after the commit: no row, no index entry, and the log holds no old page.
  bool verified = false;
  std::string note;  ///< why not verified
};

}  // namespace inferscale
