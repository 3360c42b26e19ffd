#pragma once

#include <optional>

#include "engine/engine.h"
#include "memory/service_core.h"

namespace inferscale {

/// The KV of the prompt's header: a record of the system scope, captured when the header is first
/// prefilled and injected from then on.
struct HeaderSegment {
  Segment segment;
  bool cold = false;  ///< no KV at hand: it is prefilled, and captured by the caller with `meta`
  /// It is on disk, but the host budget is full of what answers use: it is prefilled, and not
  /// captured again.
  bool no_room = false;
  RecordMeta meta;
};

/// Leases the header's record if there is one.
[[nodiscard]] HeaderSegment lease_header(ServiceCore& core, const EngineParts& parts);

/// Prefills and keeps the header, unless it is at hand already.
[[nodiscard]] Status warm_header(ServiceCore& core, const EngineParts& parts);

/// Stores a header record that a run captured; null (the engine could not capture) is nothing to
/// store. A header that cannot be kept costs the next prompt its prefill and is logged: it never
/// fails what it was captured for.
void keep_header(ServiceCore& core, const EngineParts& parts, std::shared_ptr<const Record> record);

}  // namespace inferscale
