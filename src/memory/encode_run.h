#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "memory/encode_context.h"
#include "memory/header_record.h"
#include "memory/service_core.h"

namespace inferscale {

/// One run of the engine that encodes a group, and where in its result the records are.
struct EncodeRun {
  struct Place {
    std::size_t branch = 0;
    std::size_t capture = 0;
  };
  RunRequest request;
  std::vector<Place> facts;             ///< of the group's facts, in order
  std::vector<RecordKey> injected;      ///< records whose KV the facts are encoded behind
  std::vector<FactRef> attended_facts;  ///< by all of them: as text or as KV
  std::optional<PrefixSegment>
      header;  ///< cold ones: captured behind the first fact, in this order
  std::optional<PrefixSegment> lines;
  std::size_t first_injected = 0;  ///< segment of the plan

  /// Whether the engine has really put in place all of `injected`. If not, the context ids of the
  /// records are not true.
  [[nodiscard]] bool as_planned(const RunResult& result) const;
};

/// `group` is filled, `lines` are the token ids of its facts. Leases what is to be injected; with
/// `allow_records` false the records of facts are left out, and these are text. Several runs of the
/// same group differ in what is at hand.
[[nodiscard]] EncodeRun make_encode_run(ServiceCore& core, const EngineParts& parts,
                                        ContextKind kind, const EncodeGroup& group,
                                        const std::vector<std::vector<TokenId>>& lines,
                                        bool allow_records);

/// Keeps the cold prefixes that the run captured, and erases others that tell of `scope`, the
/// group's. Errors: those of the catalog and the store.
[[nodiscard]] Status keep_prefixes(ServiceCore& core, const EngineParts& parts, const Scope& scope,
                                   const EncodeRun& run, const RunResult& result);

}  // namespace inferscale
