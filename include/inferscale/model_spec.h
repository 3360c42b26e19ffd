#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "inferscale/export.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// Which two elements of a head form rotary pair i (rotary_dim = 2 n): (2i, 2i+1), which GGUF calls
/// NORM and others GPT-J style; or (i, i+n), called NEOX.
enum class RopePairing : std::uint8_t { kAdjacent = 0, kHalves = 1 };

/// How angles depart from pos * base^(-2i/rotary_dim).
enum class RopeScaling : std::uint8_t { kNone = 0, kLinear = 1, kLlama3 = 2, kYarn = 3 };

/// Everything that decides a rotary embedding. A value type.
struct RopeSpec {
  RopePairing pairing = RopePairing::kAdjacent;
  RopeScaling scaling = RopeScaling::kNone;
  double freq_base = 10000.0;
  std::uint32_t rotary_dim =
      0;  ///< rotated elements of a head, even, <= head_dim_k; the rest is copied
  double scaling_factor =
      1.0;  ///< linear and YaRN: positions are divided by it (YaRN: interpolated part)
  std::vector<float>
      freq_factors;  ///< llama3: [rotary_dim/2], pair i turns by pos*freq_i/factor_i; else empty
  /// YaRN (arXiv 2309.00071): corrected range in number of turns over `original_context`.
  double yarn_ext_factor = 1.0;
  double yarn_attn_factor = 1.0;
  double yarn_beta_fast = 32.0;
  double yarn_beta_slow = 1.0;
  std::uint32_t original_context = 0;

  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;

  /// Errors: kInvalidArgument that names the field and the accepted range.
  [[nodiscard]] INFERSCALE_API Status validate() const;
  /// The factor that scales cos and sin, hence rotated keys: 1 except under YaRN.
  [[nodiscard]] INFERSCALE_API double mscale() const;
  /// [rotary_dim/2] angles per position step, in double.
  [[nodiscard]] INFERSCALE_API std::vector<double> angular_frequencies() const;
  /// Bytes that are equal exactly when two specs are equal; part of the model fingerprint.
  [[nodiscard]] INFERSCALE_API std::string canonical_bytes() const;
};

/// The sizes of one layer's keys and values per token; equal in all layers of a supported model.
struct KvShape {
  std::uint32_t n_layers = 0;
  std::uint32_t n_kv_heads = 0;
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;
  friend bool operator==(const KvShape&, const KvShape&) = default;
  [[nodiscard]] std::size_t k_elements() const { return std::size_t{n_kv_heads} * head_dim_k; }
  [[nodiscard]] std::size_t v_elements() const { return std::size_t{n_kv_heads} * head_dim_v; }
  /// Errors: kInvalidArgument unless layers 1..1024, heads 1..1024, head dims 1..1024 (head_dim_k
  /// even).
  [[nodiscard]] INFERSCALE_API Status validate() const;
};

/// Checks what a model adds to its keys: [n_layers][n_kv_heads][head_dim_k], or nothing. Errors:
/// kInvalidArgument (another number of elements, or one that is not finite).
[[nodiscard]] INFERSCALE_API Status check_key_bias(std::span<const float> key_bias,
                                                   const KvShape& shape);

/// What lies between a key in a record and that key in an engine's cache: cos and sin of every
/// (position, pair), scaled by mscale, in fp32 from angles reduced in double; and the bias that the
/// model adds to its keys before it rotates them. Immutable after construction and safe to share
/// between threads.
class INFERSCALE_API RopeTable {
 public:
  /// Covers positions 0 .. max_positions-1. Memory: max_positions * rotary_dim * 4 bytes.
  /// `key_bias`: of the layers and heads that the table is used with, or empty. Errors:
  /// kInvalidArgument (spec, max_positions outside 1 .. 2^24, or a bias that is not finite).
  [[nodiscard]] static Result<std::shared_ptr<const RopeTable>> build(
      const RopeSpec& spec, std::uint32_t max_positions, std::vector<float> key_bias = {});

  [[nodiscard]] const RopeSpec& spec() const { return spec_; }
  [[nodiscard]] std::uint32_t max_positions() const { return max_positions_; }
  [[nodiscard]] std::uint32_t pairs() const { return spec_.rotary_dim / 2; }
  /// [pairs()] values. REQUIRES: position < max_positions().
  [[nodiscard]] const float* cos_row(std::uint32_t position) const {
    return cos_.data() + std::size_t{position} * pairs();
  }
  [[nodiscard]] const float* sin_row(std::uint32_t position) const {
    return sin_.data() + std::size_t{position} * pairs();
  }
  /// 1 / mscale^2: what an inverse rotation multiplies by (c^2 + s^2 = mscale^2).
  [[nodiscard]] float inverse_norm() const { return inverse_norm_; }
  /// What is added to keys of records before they are rotated, and taken away from those of a cache
  /// after they were rotated back: [n_layers][n_kv_heads][head_dim_k], or empty.
  [[nodiscard]] std::span<const float> key_bias() const { return key_bias_; }
  /// Of one layer, null without. REQUIRES: key_bias() is empty or of this shape.
  [[nodiscard]] const float* key_bias_of(std::uint32_t layer, const KvShape& shape) const {
    return key_bias_.empty() ? nullptr : key_bias_.data() + layer * shape.k_elements();
  }

 private:
  RopeTable() = default;
  RopeSpec spec_;
  std::uint32_t max_positions_ = 0;
  float inverse_norm_ = 1.0F;
  std::vector<float> cos_;
  std::vector<float> sin_;
  std::vector<float> key_bias_;
};

/// What of a model decides its KV. A value type.
struct ModelSpec {
  std::string architecture;  ///< GGUF `general.architecture`, e.g. "llama"
  std::string name;          ///< for people; not part of the fingerprint
  KvShape shape;
  RopeSpec rope;
  std::uint32_t trained_positions = 0;  ///< the context length the model was trained for
  std::uint32_t vocab_size = 0;
  /// What the model adds to its keys before it rotates them, [n_layers][n_kv_heads][head_dim_k];
  /// empty: nothing, or not known. Records hold keys without it. The fingerprint says so, since
  /// records are never to be used with another.
  std::vector<float> key_bias;
  Hash128 fingerprint;  ///< content of the weights, architecture, RopeSpec, key_bias where there is
                        ///< one, adapters, KV-relevant settings
};

}  // namespace inferscale
