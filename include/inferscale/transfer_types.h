#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "inferscale/memory_types.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// A turn with the scope that it belongs to.
struct TurnView {
  Scope scope;
  TurnInput turn;
};

/// A fact with all its versions: what an export carries. KV and vectors are made again.
struct ExportedFact {
  FactView fact;                        ///< the live version
  std::vector<FactHistoryRow> history;  ///< the superseded ones, oldest first
};

struct ExportCounts {
  std::uint64_t turns = 0;
  std::uint64_t facts = 0;
  std::uint64_t versions = 0;  ///< superseded ones
};

/// Takes an export piece by piece, in this order; an error ends it. Called from the exporting
/// thread; must not throw, nor call the service.
struct ExportSink {
  std::function<Status(const ExportCounts&)> begin;
  std::function<Status(const TurnView&)> turn;
  std::function<Status(const ExportedFact&)> fact;
};

/// What `restore` did with a batch. Every item that was neither taken nor there already is an
/// error.
struct RestoreReply {
  std::uint64_t turns = 0;  ///< new ones
  std::uint64_t turns_existing = 0;
  std::uint64_t facts_added = 0;
  std::uint64_t facts_existing = 0;  ///< the same in everything, or the same text and nothing more
  std::uint64_t facts_renamed = 0;   ///< of the new ones: the id belongs to a fact of other people
  std::uint64_t versions = 0;        ///< superseded versions of the new ones
  std::vector<ItemError> turn_errors, fact_errors;
};

}  // namespace inferscale
