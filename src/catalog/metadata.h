#pragma once

#include <string_view>

#include "inferscale/status.h"

namespace inferscale {

/// Whether `metadata` is what a fact may carry: one JSON object within the limits of the catalog.
/// Errors: kInvalidArgument that starts with `field`.
[[nodiscard]] Status check_metadata(std::string_view field, std::string_view metadata);

}  // namespace inferscale
