#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "inferscale/types.h"

namespace inferscale {

/// Where `tokens` stand in `prompt`, the first `most` places, overlapping ones included. Takes time
/// in proportion to both sizes whatever the tokens are. Empty `tokens` stand nowhere.
[[nodiscard]] std::vector<std::size_t> find_tokens(std::span<const TokenId> prompt,
                                                   std::span<const TokenId> tokens,
                                                   std::size_t most);

}  // namespace inferscale
