#pragma once

#include <span>
#include <vector>

#include "engine/engine.h"
#include "model/llama_handles.h"

namespace inferscale {

/// Greedy at temperature 0; else top-k, top-p, temperature and a draw from `seed`: the same request
/// gives the same tokens. Errors: kResourceExhausted (memory).
[[nodiscard]] Result<LlamaSamplerPtr> make_sampler(const Sampling& sampling);

/// log-softmax, summed in double. Errors: kInternal when a logit is not a number.
[[nodiscard]] Result<std::vector<float>> log_softmax(std::span<const float> logits);

}  // namespace inferscale
