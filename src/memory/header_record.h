#pragma once

#include <optional>
#include <vector>

#include "engine/engine.h"
#include "memory/service_core.h"

namespace inferscale {

/// The KV of what a prompt begins with: a record that is captured when it is first prefilled and
/// injected from then on.
struct PrefixSegment {
  Segment segment;
  bool cold = false;  ///< no KV at hand: it is prefilled, and captured by the caller with `meta`
  /// It is on disk, but the host budget is full of what answers use: it is prefilled, and not
  /// captured again.
  bool no_room = false;
  RecordMeta meta;
  /// A fact of the scope that it tells of: without that fact it is not kept. Unset: of nobody.
  std::optional<Fact> witness;
};

/// Leases the record of the prompt's header, of the system scope, if there is one.
[[nodiscard]] PrefixSegment lease_header(ServiceCore& core, const EngineParts& parts);

/// The same for header and `lines` together. Without `owner` the lines tell of nobody, and all
/// scopes share the record; with a fact they tell of that fact's scope, which it then belongs to.
[[nodiscard]] PrefixSegment lease_lines(ServiceCore& core, const EngineParts& parts,
                                        const std::vector<std::vector<TokenId>>& lines,
                                        const Fact* owner);

/// Prefills and keeps the header, unless it is at hand already, on behalf of `asker`.
[[nodiscard]] Status warm_header(ServiceCore& core, const EngineParts& parts, const Scope& asker);

/// Stores a record that a run captured for `prefix`; null (the engine could not capture) is nothing
/// to store. One that cannot be kept costs the next prompt its prefill and is logged: it never
/// fails what it was captured for.
void keep_prefix(ServiceCore& core, const EngineParts& parts, const PrefixSegment& prefix,
                 std::shared_ptr<const Record> record);

/// Erases the records of lines that tell of `owner`, but for that of `current`: names that have
/// changed must not stay behind.
[[nodiscard]] Status drop_other_lines(ServiceCore& core, const EngineParts& parts,
                                      const Scope& owner, const PrefixSegment* current);

}  // namespace inferscale
