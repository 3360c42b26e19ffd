#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory/service_core.h"

namespace inferscale {

/// How the catalog's record entries and the records in the tiers agree.
struct RecordAudit {
  std::uint64_t entries = 0;         ///< current ones
  std::uint64_t records = 0;         ///< keys in any tier
  std::uint64_t sound = 0;           ///< records read, verified and equal to their entry
  std::uint64_t missing = 0;         ///< entries whose record is in no tier
  std::vector<RecordKey> orphans;    ///< in a tier, but no entry names them
  std::vector<RecordKey> damaged;    ///< could not be verified; their tier dropped them
  std::vector<RecordKey> different;  ///< not the record that the entry describes
};

/// Goes through both sides; `full` reads every record. Holds keys in memory (about 100 bytes a
/// record). Errors: kUnavailable (cancelled), those of the catalog.
[[nodiscard]] Result<RecordAudit> audit_records(ServiceCore& core, bool full,
                                                const WorkControl& control);

}  // namespace inferscale
