#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "inferscale/status.h"

namespace inferscale {

/// Parses `text` as one JSON object and refuses what two readers could understand differently:
/// repeated keys, U+0000 in a string, nesting deeper than `max_depth`.
/// Errors: kInvalidArgument that starts with `field`.
[[nodiscard]] Result<nlohmann::json> parse_json_object(std::string_view field,
                                                       std::string_view text, std::size_t max_bytes,
                                                       int max_depth);

}  // namespace inferscale
