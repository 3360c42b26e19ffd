#include "engine/llama/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace inferscale {
namespace {

/// libllama takes 32 bits, of which all ones mean "random".
std::uint32_t fold_seed(std::uint64_t seed) {
  const auto folded = static_cast<std::uint32_t>(seed ^ (seed >> 32));
  return folded == LLAMA_DEFAULT_SEED ? 0 : folded;
}

}  // namespace

Result<LlamaSamplerPtr> make_sampler(const Sampling& sampling) {
  LlamaSamplerPtr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  if (chain == nullptr) {
    return resource_exhausted("libllama could not make a sampler");
  }
  if (sampling.temperature <= 0) {
    llama_sampler_chain_add(chain.get(), llama_sampler_init_greedy());
    return chain;
  }
  if (sampling.top_k > 0) {
    const auto limit = static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max());
    const auto top_k = static_cast<std::int32_t>(std::min(sampling.top_k, limit));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(top_k));
  }
  if (sampling.top_p < 1) {
    llama_sampler_chain_add(chain.get(), llama_sampler_init_top_p(sampling.top_p, 1));
  }
  llama_sampler_chain_add(chain.get(), llama_sampler_init_temp(sampling.temperature));
  llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(fold_seed(sampling.seed)));
  return chain;
}

Result<std::vector<float>> log_softmax(std::span<const float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - largest);
  }
  if (!std::isfinite(sum)) {
    return internal_error("the model gave a logit that is not a number");
  }
  const double log_sum = std::log(sum);
  std::vector<float> result(logits.size());
  std::transform(logits.begin(), logits.end(), result.begin(), [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - largest - log_sum);
  });
  return result;
}

}  // namespace inferscale
