#pragma once

#include <span>

namespace inferscale {

/// KL(p || q) in nats, of natural log-probabilities over one vocabulary.
[[nodiscard]] double kl_divergence(std::span<const float> p, std::span<const float> q);

}  // namespace inferscale
