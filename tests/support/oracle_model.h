#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "inferscale/model_spec.h"
#include "inferscale/status.h"
#include "support/oracle_math.h"

namespace inferscale::testing {

/// Keys and values of some tokens, keys before rotation. A row's position is what its keys are
/// rotated to when it is attended to, so "place these tokens elsewhere" is: change `positions`.
struct OracleKv {
  struct Layer {
    std::vector<Vector> keys;    ///< [row][kv_heads * head_dim]
    std::vector<Vector> values;  ///< [row][kv_heads * head_dim]
  };
  std::vector<std::int32_t> positions;  ///< [row]
  std::vector<Layer> layers;

  [[nodiscard]] std::size_t rows() const { return positions.size(); }
  /// Adds the rows of `other` behind these.
  void append(const OracleKv& other);
  /// Rows first .. first+count-1, standing at first_position, first_position+1, ...
  [[nodiscard]] OracleKv slice(std::size_t first, std::size_t count,
                               std::int32_t first_position) const;
};

struct OracleOutput {
  std::vector<Vector> logits;  ///< [token][vocabulary]
  OracleKv kv;                 ///< of the tokens of this call only
};

/// A transformer of the supported families in double precision, written to be read: what an engine
/// computes must agree with it. For models of a few layers; makes no attempt to be fast.
class OracleModel {
 public:
  /// Reads a GGUF file of f32 weights. Errors: those of read_model_spec; kUnsupported for other
  /// weights.
  [[nodiscard]] static Result<OracleModel> load(const std::filesystem::path& path);

  [[nodiscard]] const ModelSpec& spec() const { return spec_; }

  /// Rounds what is attended to, rotated keys and values, to f16. libllama does so with flash
  /// attention even when its cache is f32; off, the oracle is exact.
  void set_f16_attention(bool on) { f16_attention_ = on; }

  /// Runs tokens at `positions`. Each attends to those rows of `past` and of this call whose
  /// position is not above its own. REQUIRES: valid token ids, as many positions as tokens, `past`
  /// empty or of this model.
  [[nodiscard]] OracleOutput forward(std::span<const TokenId> tokens,
                                     std::span<const std::int32_t> positions,
                                     const OracleKv& past) const;

  /// The keys of one row as they stand in an engine's cache at `position`.
  [[nodiscard]] Vector rotate(const Vector& heads, std::int32_t position) const;

 private:
  OracleModel() = default;
  /// Attention of one token's queries over `rows`, whose keys are rotated already.
  [[nodiscard]] Vector attend(const Vector& queries, std::int32_t position,
                              const OracleKv::Layer& rows,
                              std::span<const std::int32_t> positions) const;
  /// Keys rotated to their positions, everything rounded as `set_f16_attention` says.
  [[nodiscard]] OracleKv::Layer as_attended(const OracleKv::Layer& layer,
                                            std::span<const std::int32_t> positions) const;
  [[nodiscard]] Vector as_attended(const Vector& row) const;
  [[nodiscard]] const Matrix& matrix(const std::string& name) const { return matrices_.at(name); }
  [[nodiscard]] const Vector& vector(const std::string& name) const {
    return matrices_.at(name).values;
  }
  [[nodiscard]] Vector project(const std::string& name, const Vector& x) const;
  [[nodiscard]] Vector normed_input(const std::string& norm, const Vector& x) const;
  [[nodiscard]] Vector residual(const std::string& post_norm, const Vector& x,
                                const Vector& update) const;
  void append_kv(const std::string& block, const Vector& input, OracleKv::Layer& layer) const;
  [[nodiscard]] Vector queries(const std::string& block, const Vector& input) const;
  [[nodiscard]] Vector feed_forward(const std::string& block, const Vector& input) const;

  ModelSpec spec_;
  double epsilon_ = 0;
  double embedding_scale_ = 1;
  double residual_scale_ = 1;
  double attention_scale_ = 1;
  double logit_scale_ = 1;
  std::vector<double> frequencies_;
  bool f16_attention_ = false;
  std::map<std::string, Matrix> matrices_;
};

}  // namespace inferscale::testing
