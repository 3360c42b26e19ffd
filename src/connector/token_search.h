#pragma once

#include <cstddef>
#include <span>

#include "inferscale/types.h"

namespace inferscale {

/// A place in a prompt, and how many parts stand there, one directly after the other.
struct TokenRun {
  std::size_t begin = 0;
  std::size_t parts = 0;  ///< 0: not even the first stands anywhere
  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

/// Where in `prompt` the most leading `parts` follow each other; the first such place. Takes time
/// in proportion to the sizes of both, whatever the tokens are. An empty part ends the run before
/// it.
[[nodiscard]] TokenRun find_longest_run(std::span<const TokenId> prompt,
                                        std::span<const std::span<const TokenId>> parts);

}  // namespace inferscale
