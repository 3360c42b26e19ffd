#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace inferscale {

/// Everything about a request that can be checked without the cache: branches, token ids, ranges,
/// captures, sizes. Errors: kInvalidArgument, kResourceExhausted (longer than the context; the
/// message names the sizes).
[[nodiscard]] Status check_request(const RunRequest& request, const EngineInfo& info);

[[nodiscard]] std::size_t plan_tokens(const RunRequest& request);
/// Plan, then the branch's tokens.
[[nodiscard]] std::vector<TokenId> sequence_tokens(const RunRequest& request, const Branch& branch);

/// What a session's sequence holds.
struct CachedSequence {
  std::vector<TokenId> tokens;
  std::size_t first_injected =
      SIZE_MAX;  ///< from here on rows may come from records: not for the text arm
};

/// Which tokens of a run come from where. Token indices count from the start of the sequence.
struct RunPlan {
  std::size_t reused = 0;         ///< [0, reused): already in the session's cache
  std::size_t inject_begin = 0;   ///< [reused, inject_begin): text
  std::size_t inject_end = 0;     ///< [inject_begin, inject_end): injected; the rest is text
  std::size_t first_segment = 0;  ///< segments [first_segment, last_segment) are injected
  std::size_t last_segment = 0;
  std::vector<Fallback> fallbacks;
};

/// Decides what is reused, injected and prefilled (the order in `Engine`'s comment). Nothing is
/// injected that does not match the segment's token ids and the engine's model; each reason is
/// counted. REQUIRES: check_request(request) is ok. Errors: kInvalidArgument (a scored position
/// would be injected).
[[nodiscard]] Result<RunPlan> make_run_plan(const RunRequest& request, const EngineInfo& info,
                                            const CachedSequence* cached);

void add_fallback(std::vector<Fallback>& fallbacks, const std::string& reason,
                  std::uint32_t count = 1);

}  // namespace inferscale
