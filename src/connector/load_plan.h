#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "connector/rank_transfer.h"
#include "connector/scheduler_index.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// The part of a match that the tokens begin .. end - 1 of a prompt touch. A request's records are
/// many, and every rank is told of them in every step that loads: as bytes they are neither made
/// nor taken apart one by one on the way.
struct LoadPlan {
  std::vector<std::byte> bytes;  ///< for this machine's processes alone
  std::uint32_t first = 0;       ///< the records' tokens are those of the prompt from here
  std::uint32_t last = 0;        ///< to before here
};
[[nodiscard]] LoadPlan plan_load(const Match& match, std::uint32_t begin, std::uint32_t end);

/// What a rank prepares; `tokens`: the records' ids, one after the other. Errors: kInvalidArgument
/// (bytes of no plan, or of one for another number of tokens).
[[nodiscard]] Result<std::vector<LoadItem>> load_items(std::span<const std::byte> plan,
                                                       std::span<const TokenId> tokens);

/// Where the records end of which at most `max_tokens` are loaded behind the first `local_hit`
/// tokens, and how many records are left out.
struct LoadLimit {
  std::uint32_t end = 0;
  std::size_t left_out = 0;
};
[[nodiscard]] LoadLimit limit_load(const Match& match, std::uint32_t local_hit,
                                   std::uint64_t max_tokens);

}  // namespace inferscale
