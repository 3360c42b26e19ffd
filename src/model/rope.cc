#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>
#include <numbers>
#include <utility>

#include "base/hash.h"
#include "inferscale/model_spec.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kMaxRotaryDim = 1024;
constexpr std::uint32_t kMaxPositions = 1U << 24;

Status check_range(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high)) {  // also catches NaN
    return invalid_argument(
        fmt::format("rope {} must be in {}..{}, not {}", field, low, high, value));
  }
  return Status();
}

Status check_freq_factors(const RopeSpec& spec) {
  const std::size_t expected = spec.scaling == RopeScaling::kLlama3 ? spec.rotary_dim / 2 : 0;
  if (spec.freq_factors.size() != expected) {
    return invalid_argument(fmt::format("rope freq_factors must have {} elements, not {}", expected,
                                        spec.freq_factors.size()));
  }
  for (const float factor : spec.freq_factors) {
    INFERSCALE_RETURN_IF_ERROR(check_range("freq_factors element", factor, 1e-6, 1e6));
  }
  return Status();
}

Status check_yarn(const RopeSpec& spec) {
  INFERSCALE_RETURN_IF_ERROR(check_range("yarn_ext_factor", spec.yarn_ext_factor, 0, 1));
  INFERSCALE_RETURN_IF_ERROR(check_range("yarn_attn_factor", spec.yarn_attn_factor, 1e-3, 1e3));
  INFERSCALE_RETURN_IF_ERROR(check_range("yarn_beta_fast", spec.yarn_beta_fast, 1e-3, 1e6));
  INFERSCALE_RETURN_IF_ERROR(check_range("yarn_beta_slow", spec.yarn_beta_slow, 1e-3, 1e6));
  INFERSCALE_RETURN_IF_ERROR(check_range("original_context", spec.original_context, 1, 2147483647));
  return check_range("mscale", spec.mscale(), 1e-3, 1e3);
}

/// The pair that turns `turns` times over the original context. Computed in float like ggml, whose
/// floor and ceil would otherwise come out differently next to a whole number.
float yarn_corrected_pair(const RopeSpec& spec, double turns) {
  const auto dims = static_cast<float>(spec.rotary_dim);
  const auto context = static_cast<float>(spec.original_context);
  const auto base = static_cast<float>(spec.freq_base);
  const float full_turns = static_cast<float>(turns) * 2 * std::numbers::pi_v<float>;
  return dims * std::log(context / full_turns) / (2 * std::log(base));
}

/// How far pair i keeps its own frequency: 1 below the corrected range, 0 above it.
std::vector<double> yarn_extrapolation(const RopeSpec& spec) {
  const double low = std::max(0.0F, std::floor(yarn_corrected_pair(spec, spec.yarn_beta_fast)));
  const double high = std::min(static_cast<float>(spec.rotary_dim - 1),
                               std::ceil(yarn_corrected_pair(spec, spec.yarn_beta_slow)));
  std::vector<double> mix(spec.rotary_dim / 2);
  for (std::size_t i = 0; i < mix.size(); ++i) {
    const double ramp = (static_cast<double>(i) - low) / std::max(0.001, high - low);
    mix[i] = (1.0 - std::clamp(ramp, 0.0, 1.0)) * spec.yarn_ext_factor;
  }
  return mix;
}

void add_double(HashMessage& message, double value) {
  message.add_u64(std::bit_cast<std::uint64_t>(value + 0.0));  // -0.0 and 0.0 are equal
}

}  // namespace

Status RopeSpec::validate() const {
  if (pairing != RopePairing::kAdjacent && pairing != RopePairing::kHalves) {
    return invalid_argument("rope pairing must be adjacent or halves");
  }
  if (static_cast<unsigned>(scaling) > static_cast<unsigned>(RopeScaling::kYarn)) {
    return invalid_argument("rope scaling must be none, linear, llama3 or yarn");
  }
  if (rotary_dim < 2 || rotary_dim > kMaxRotaryDim || rotary_dim % 2 != 0) {
    return invalid_argument(fmt::format("rope rotary_dim must be even and in 2..{}, not {}",
                                        kMaxRotaryDim, rotary_dim));
  }
  INFERSCALE_RETURN_IF_ERROR(check_range("freq_base", freq_base, 1.001, 1e15));
  const bool scaled = scaling == RopeScaling::kLinear || scaling == RopeScaling::kYarn;
  INFERSCALE_RETURN_IF_ERROR(
      check_range("scaling_factor", scaling_factor, scaled ? 1e-3 : 1, scaled ? 1e6 : 1));
  INFERSCALE_RETURN_IF_ERROR(check_freq_factors(*this));
  return scaling == RopeScaling::kYarn ? check_yarn(*this) : Status();
}

double RopeSpec::mscale() const {
  if (scaling != RopeScaling::kYarn) {
    return 1.0;
  }
  // ggml applies the magnitude correction only where it mixes in extrapolated angles.
  const double correction = yarn_ext_factor != 0.0 ? 1.0 + 0.1 * std::log(scaling_factor) : 1.0;
  return yarn_attn_factor * correction;
}

std::vector<double> RopeSpec::angular_frequencies() const {
  std::vector<double> frequencies(rotary_dim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(freq_base, -2.0 * static_cast<double>(i) / rotary_dim);
  }
  switch (scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (double& frequency : frequencies) {
        frequency /= scaling_factor;
      }
      break;
    case RopeScaling::kLlama3:
      for (std::size_t i = 0; i < std::min(frequencies.size(), freq_factors.size()); ++i) {
        frequencies[i] /= freq_factors[i];
      }
      break;
    case RopeScaling::kYarn: {
      const std::vector<double> mix = yarn_extrapolation(*this);
      for (std::size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] *= (1.0 - mix[i]) / scaling_factor + mix[i];
      }
      break;
    }
  }
  return frequencies;
}

std::string RopeSpec::canonical_bytes() const {
  HashMessage message;
  message.add_u32(static_cast<std::uint32_t>(pairing));
  message.add_u32(static_cast<std::uint32_t>(scaling));
  message.add_u32(rotary_dim);
  message.add_u32(original_context);
  for (const double value : {freq_base, scaling_factor, yarn_ext_factor, yarn_attn_factor,
                             yarn_beta_fast, yarn_beta_slow}) {
    add_double(message, value);
  }
  message.add_u64(freq_factors.size());
  for (const float factor : freq_factors) {
    add_double(message, factor);
  }
  const auto bytes = message.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::shared_ptr<const RopeTable>> RopeTable::build(const RopeSpec& spec,
                                                          std::uint32_t max_positions,
                                                          std::vector<float> key_bias) {
  INFERSCALE_RETURN_IF_ERROR(spec.validate());
  if (max_positions < 1 || max_positions > kMaxPositions) {
    return invalid_argument(
        fmt::format("max_positions must be in 1..{}, not {}", kMaxPositions, max_positions));
  }
  if (!std::all_of(key_bias.begin(), key_bias.end(), [](float b) { return std::isfinite(b); })) {
    return invalid_argument("key_bias has an element that is not finite");
  }
  try {
    const std::shared_ptr<RopeTable> table(new RopeTable);
    const std::vector<double> frequencies = spec.angular_frequencies();
    const double scale = spec.mscale();
    table->spec_ = spec;
    table->max_positions_ = max_positions;
    table->key_bias_ = std::move(key_bias);
    table->inverse_norm_ = static_cast<float>(1.0 / (scale * scale));
    table->cos_.reserve(frequencies.size() * max_positions);
    table->sin_.reserve(frequencies.size() * max_positions);
    for (std::uint32_t position = 0; position < max_positions; ++position) {
      for (const double frequency : frequencies) {
        const double angle = position * frequency;
        table->cos_.push_back(static_cast<float>(scale * std::cos(angle)));
        table->sin_.push_back(static_cast<float>(scale * std::sin(angle)));
      }
    }
    return std::shared_ptr<const RopeTable>(table);
  } catch (const std::bad_alloc&) {
    return resource_exhausted(
        fmt::format("not enough memory for a rope table of {} positions", max_positions));
  }
}

}  // namespace inferscale
