#include "model/gguf_rope.h"

#include <fmt/format.h>

#include <cmath>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr float kUnset = -1.0F;  // how GGUF says "not given" for yarn_ext_factor

/// A factor that some version of libllama reads for these families and others do not: only the
/// value that changes nothing is the same for all of them.
struct YarnDefault {
  const char* key;
  float value;
};
constexpr YarnDefault kYarnDefaults[] = {{"yarn_ext_factor", kUnset},
                                         {"yarn_attn_factor", 1.0F},
                                         {"yarn_beta_fast", 32.0F},
                                         {"yarn_beta_slow", 1.0F},
                                         {"yarn_log_multiplier", 0.0F}};

bool pairs_are_adjacent(const std::string& architecture) {
  return architecture == "llama" || architecture == "granite";
}

Status refuse(const GgufFile& file, const std::string& reason) {
  return unsupported(fmt::format("model {} {}", file.path().string(), reason));
}

Status check_yarn_defaults(const GgufFile& file, const std::string& prefix) {
  for (const YarnDefault& item : kYarnDefaults) {
    const std::string key = prefix + "scaling." + item.key;
    INFERSCALE_ASSIGN_OR_RETURN(const auto value, file.f32(key));
    if (value && *value != item.value) {
      return refuse(file,
                    fmt::format("sets {} to {}; only {} is supported", key, *value, item.value));
    }
  }
  return Status();
}

/// What libllama would refuse, ignore or assert on, and what this library cannot rotate back.
Status check_rope_keys(const GgufFile& file, const std::string& prefix, std::uint32_t head_dim) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto rotary, file.u32(prefix + "dimension_count"));
  if (rotary && *rotary != head_dim) {
    return refuse(
        file, fmt::format("rotates {} of {} elements of a head (partial rotary embedding), which "
                          "libllama cannot run in this family",
                          *rotary, head_dim));
  }
  if (file.is_set(prefix + "dimension_sections")) {
    return refuse(file,
                  "uses a multi-dimensional rotary embedding (M-RoPE), which is not supported");
  }
  if (file.has_tensor("rope_factors_long.weight") || file.has_tensor("rope_factors_short.weight")) {
    return refuse(file, "has longrope factors, which are not supported");
  }
  return check_yarn_defaults(file, prefix);
}

/// Sets scaling, factor and the YaRN fields from the keys, as libllama's defaults would.
Status read_scaling(const GgufFile& file, const std::string& prefix,
                    std::uint32_t trained_positions, RopeSpec& rope) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto type, file.text(prefix + "scaling.type"));
  INFERSCALE_ASSIGN_OR_RETURN(auto factor, file.f32(prefix + "scaling.factor"));
  if (!factor) {  // the key's old name
    INFERSCALE_ASSIGN_OR_RETURN(factor, file.f32(prefix + "scale_linear"));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto attn_factor, file.f32(prefix + "scaling.attn_factor"));
  INFERSCALE_ASSIGN_OR_RETURN(const auto context,
                              file.u32(prefix + "scaling.original_context_length"));
  const std::string kind = type.value_or("linear");
  const bool given = factor && *factor != 0.0F;  // 0 means "not given", too
  if (kind == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.scaling_factor = given ? *factor : 1.0F;
    rope.original_context = context && *context != 0 ? *context : trained_positions;
    rope.yarn_attn_factor = attn_factor.value_or(1.0F);
    if (rope.scaling_factor < 1.0) {  // libllama cancels the magnitude correction here
      rope.yarn_attn_factor /= 1.0 + 0.1 * std::log(rope.scaling_factor);
    }
    return Status();
  }
  if (attn_factor && *attn_factor != 1.0F) {
    return refuse(
        file,
        "scales its attention (rope.scaling.attn_factor) without YaRN, which is not supported");
  }
  if (kind == "linear" && given && *factor != 1.0F) {
    rope.scaling = RopeScaling::kLinear;
    rope.scaling_factor = *factor;
  } else if (kind != "linear" && kind != "none") {
    return refuse(
        file, fmt::format("has rope scaling \"{}\"; supported are none, linear, llama3 and yarn",
                          utf8_prefix(kind, 32)));
  }
  return Status();
}

Status read_freq_factors(const GgufFile& file, const std::string& architecture, RopeSpec& rope) {
  INFERSCALE_ASSIGN_OR_RETURN(auto factors,
                              file.f32_tensor("rope_freqs.weight", rope.rotary_dim / 2));
  if (!factors) {
    return Status();
  }
  if (!pairs_are_adjacent(architecture)) {
    return refuse(file,
                  "has frequency factors (rope_freqs.weight), which libllama does not read in this "
                  "family");
  }
  if (rope.scaling != RopeScaling::kNone) {
    return refuse(file,
                  "combines frequency factors (rope_freqs.weight) with another rope scaling, which "
                  "is not supported");
  }
  rope.scaling = RopeScaling::kLlama3;
  rope.freq_factors = std::move(*factors);
  return Status();
}

}  // namespace

Result<RopeSpec> read_rope_spec(const GgufFile& file, const std::string& architecture,
                                std::uint32_t head_dim, std::uint32_t trained_positions) {
  const std::string prefix = architecture + ".rope.";
  INFERSCALE_RETURN_IF_ERROR(check_rope_keys(file, prefix, head_dim));
  RopeSpec rope;
  rope.pairing = pairs_are_adjacent(architecture) ? RopePairing::kAdjacent : RopePairing::kHalves;
  rope.rotary_dim = head_dim;
  INFERSCALE_ASSIGN_OR_RETURN(const auto base, file.f32(prefix + "freq_base"));
  rope.freq_base = base.value_or(10000.0F);
  INFERSCALE_RETURN_IF_ERROR(read_scaling(file, prefix, trained_positions, rope));
  INFERSCALE_RETURN_IF_ERROR(read_freq_factors(file, architecture, rope));
  const Status valid = rope.validate();
  if (!valid.ok()) {
    return valid.with_context("model " + file.path().string());
  }
  return rope;
}

}  // namespace inferscale
