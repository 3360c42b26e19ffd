#pragma once

#include <string_view>

#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// Whether a scope that somebody handed in may be used: every field at most 256 bytes of UTF-8
/// without control characters; no user without a tenant, no agent or run without a user. Errors:
/// kInvalidArgument that names the field, with `item` ("facts[3]", or nothing) before it.
[[nodiscard]] Status check_scope(std::string_view item, const Scope& scope);

}  // namespace inferscale
