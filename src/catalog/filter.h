#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inferscale/status.h"

namespace inferscale {

/// A condition on a fact's metadata. A default-constructed Filter matches everything.
struct Filter {
  enum class Op {
    kAll,
    kAnd,
    kOr,
    kNot,
    kEq,
    kNe,
    kGt,
    kGte,
    kLt,
    kLte,
    kIn,
    kNin,
    kContains,
    kIcontains,
    kExists
  };
  Op op = Op::kAll;
  std::string field;  ///< metadata key; or "event_time", "ingest_time" (RFC 3339 operands)
  std::vector<std::string> values;  ///< operands, each a JSON scalar
  std::vector<Filter> children;     ///< of kAnd, kOr, kNot
};

/// Parses the JSON form, e.g.
/// {"AND":[{"city":"Graz"},{"score":{"gte":3}},{"NOT":[{"tag":{"in":["a","b"]}}]}]}; a bare object
/// is an AND of its members; "*" means "exists". Limits: 16 KiB, depth 8, 64 conditions. Errors:
/// kInvalidArgument that names the offending key and lists the operators; reserved names (user,
/// agent, run, tenant) are refused because a filter can never widen or change the scope.
[[nodiscard]] Result<Filter> parse_filter(std::string_view json);

}  // namespace inferscale
