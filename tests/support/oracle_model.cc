#include "support/oracle_model.h"

#include <ggml.h>
#include <gguf.h>

#include <cmath>
#include <memory>

#include "model/gguf_file.h"
#include "model/gguf_model.h"

namespace inferscale::testing {
namespace {

struct Deleter {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
  void operator()(ggml_context* tensors) const { ggml_free(tensors); }
};

Result<std::map<std::string, Matrix>> read_matrices(const std::filesystem::path& path) {
  ggml_context* raw = nullptr;
  const std::unique_ptr<gguf_context, Deleter> gguf(
      gguf_init_from_file(path.c_str(), {false, &raw}));
  const std::unique_ptr<ggml_context, Deleter> tensors(raw);
  if (gguf == nullptr) {
    return data_loss("cannot read " + path.string());
  }
  std::map<std::string, Matrix> matrices;
  for (ggml_tensor* tensor = ggml_get_first_tensor(raw); tensor != nullptr;
       tensor = ggml_get_next_tensor(raw, tensor)) {
    const std::string name = ggml_get_name(tensor);
    if (gguf_find_tensor(gguf.get(), name.c_str()) < 0) {
      continue;  // the block that holds all data
    }
    if (tensor->type != GGML_TYPE_F32) {
      return unsupported("the oracle reads f32 weights only; " + name + " is not");
    }
    const auto* data = static_cast<const float*>(tensor->data);
    const auto inputs = static_cast<std::size_t>(tensor->ne[0]);
    const auto outputs = static_cast<std::size_t>(tensor->ne[1]);
    matrices[name] = {inputs, outputs, std::vector<double>(data, data + inputs * outputs)};
  }
  return matrices;
}

std::string block_name(std::size_t layer) { return "blk." + std::to_string(layer) + "."; }

}  // namespace

void OracleKv::append(const OracleKv& other) {
  if (layers.empty()) {
    layers.resize(other.layers.size());
  }
  positions.insert(positions.end(), other.positions.begin(), other.positions.end());
  for (std::size_t i = 0; i < other.layers.size(); ++i) {
    layers[i].keys.insert(layers[i].keys.end(), other.layers[i].keys.begin(),
                          other.layers[i].keys.end());
    layers[i].values.insert(layers[i].values.end(), other.layers[i].values.begin(),
                            other.layers[i].values.end());
  }
}

OracleKv OracleKv::slice(std::size_t first, std::size_t count, std::int32_t first_position) const {
  OracleKv part;
  part.layers.resize(layers.size());
  for (std::size_t row = first; row < first + count; ++row) {
    part.positions.push_back(first_position + static_cast<std::int32_t>(row - first));
    for (std::size_t i = 0; i < layers.size(); ++i) {
      part.layers[i].keys.push_back(layers[i].keys[row]);
      part.layers[i].values.push_back(layers[i].values[row]);
    }
  }
  return part;
}

Result<OracleModel> OracleModel::load(const std::filesystem::path& path) {
  OracleModel model;
  INFERSCALE_ASSIGN_OR_RETURN(model.spec_, read_model_spec(path, {}));
  INFERSCALE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  const std::string prefix = model.spec_.architecture + ".";
  INFERSCALE_ASSIGN_OR_RETURN(const auto epsilon,
                              file.f32(prefix + "attention.layer_norm_rms_epsilon"));
  INFERSCALE_ASSIGN_OR_RETURN(const auto embedding, file.f32(prefix + "embedding_scale"));
  INFERSCALE_ASSIGN_OR_RETURN(const auto residual, file.f32(prefix + "residual_scale"));
  INFERSCALE_ASSIGN_OR_RETURN(const auto attention, file.f32(prefix + "attention.scale"));
  INFERSCALE_ASSIGN_OR_RETURN(const auto logit, file.f32(prefix + "logit_scale"));
  model.epsilon_ = epsilon.value_or(1e-5F);
  model.embedding_scale_ = embedding.value_or(1.0F);
  model.residual_scale_ = residual.value_or(1.0F);
  model.attention_scale_ =
      attention ? *attention : 1.0 / std::sqrt(static_cast<double>(model.spec_.shape.head_dim_k));
  model.logit_scale_ = logit.value_or(1.0F);
  model.frequencies_ = model.spec_.rope.angular_frequencies();
  INFERSCALE_ASSIGN_OR_RETURN(model.matrices_, read_matrices(path));
  return model;
}

/// Missing matrices and biases add nothing; a model without its own output matrix uses its
/// embeddings.
Vector OracleModel::project(const std::string& name, const Vector& x) const {
  const Vector y = matrix(name + ".weight") * x;
  const auto bias = matrices_.find(name + ".bias");
  return bias == matrices_.end() ? y : add(y, bias->second.values);
}

/// Most families normalise what goes into a block; olmo2 has no such weights and normalises what
/// comes out.
Vector OracleModel::normed_input(const std::string& norm, const Vector& x) const {
  const auto weight = matrices_.find(norm + ".weight");
  return weight == matrices_.end() ? x : rms_norm(x, weight->second.values, epsilon_);
}

Vector OracleModel::residual(const std::string& post_norm, const Vector& x,
                             const Vector& update) const {
  return add(x, scale(normed_input(post_norm, update), residual_scale_));
}

/// Normalises queries or keys where the family does: each head (qwen3) or all of them together
/// (olmo2).
static Vector norm_heads(const std::map<std::string, Matrix>& matrices, const std::string& name,
                         const Vector& heads, double epsilon) {
  const auto weight = matrices.find(name + ".weight");
  return weight == matrices.end() ? heads : rms_norm_heads(heads, weight->second.values, epsilon);
}

Vector OracleModel::queries(const std::string& block, const Vector& input) const {
  return norm_heads(matrices_, block + "attn_q_norm", project(block + "attn_q", input), epsilon_);
}

void OracleModel::append_kv(const std::string& block, const Vector& input,
                            OracleKv::Layer& layer) const {
  layer.keys.push_back(
      norm_heads(matrices_, block + "attn_k_norm", project(block + "attn_k", input), epsilon_));
  layer.values.push_back(project(block + "attn_v", input));
}

Vector OracleModel::rotate(const Vector& heads, std::int32_t position) const {
  const std::size_t head_dim = spec_.shape.head_dim_k;
  const std::size_t pairs = frequencies_.size();
  const bool adjacent = spec_.rope.pairing == RopePairing::kAdjacent;
  Vector rotated(heads);
  for (std::size_t head = 0; head < heads.size(); head += head_dim) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const std::size_t first = head + (adjacent ? 2 * i : i);
      const std::size_t second = head + (adjacent ? 2 * i + 1 : i + pairs);
      const double c = std::cos(position * frequencies_[i]) * spec_.rope.mscale();
      const double s = std::sin(position * frequencies_[i]) * spec_.rope.mscale();
      rotated[first] = heads[first] * c - heads[second] * s;
      rotated[second] = heads[first] * s + heads[second] * c;
    }
  }
  return rotated;
}

Vector OracleModel::as_attended(const Vector& row) const {
  Vector rounded(row);
  if (f16_attention_) {
    for (double& value : rounded) {
      value = ggml_fp16_to_fp32(ggml_fp32_to_fp16(static_cast<float>(value)));
    }
  }
  return rounded;
}

OracleKv::Layer OracleModel::as_attended(const OracleKv::Layer& layer,
                                         std::span<const std::int32_t> positions) const {
  OracleKv::Layer attended;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    attended.keys.push_back(as_attended(rotate(layer.keys[row], positions[row])));
    attended.values.push_back(as_attended(layer.values[row]));
  }
  return attended;
}

Vector OracleModel::attend(const Vector& queries, std::int32_t position,
                           const OracleKv::Layer& rows,
                           std::span<const std::int32_t> positions) const {
  const std::size_t head_dim = spec_.shape.head_dim_k;
  const std::size_t heads = queries.size() / head_dim;
  const std::size_t heads_per_kv = heads / spec_.shape.n_kv_heads;
  const Vector rotated = rotate(queries, position);
  Vector result(queries.size(), 0.0);
  for (std::size_t head = 0; head < heads; ++head) {
    const std::size_t kv_head = head / heads_per_kv;
    Vector weights(positions.size(), -INFINITY);
    for (std::size_t row = 0; row < positions.size(); ++row) {
      if (positions[row] > position) {
        continue;  // the future is not seen
      }
      weights[row] = 0.0;
      for (std::size_t i = 0; i < head_dim; ++i) {
        weights[row] += rotated[head * head_dim + i] * rows.keys[row][kv_head * head_dim + i];
      }
      weights[row] *= attention_scale_;
    }
    softmax(weights);
    for (std::size_t row = 0; row < positions.size(); ++row) {
      for (std::size_t i = 0; i < head_dim; ++i) {
        result[head * head_dim + i] += weights[row] * rows.values[row][kv_head * head_dim + i];
      }
    }
  }
  return result;
}

Vector OracleModel::feed_forward(const std::string& block, const Vector& input) const {
  const Vector gate = project(block + "ffn_gate", input);
  Vector hidden = project(block + "ffn_up", input);
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] *= silu(gate[i]);
  }
  return project(block + "ffn_down", hidden);
}

OracleOutput OracleModel::forward(std::span<const TokenId> tokens,
                                  std::span<const std::int32_t> positions,
                                  const OracleKv& past) const {
  const std::size_t n_layers = spec_.shape.n_layers;
  OracleKv all = past;
  all.layers.resize(n_layers);
  all.positions.insert(all.positions.end(), positions.begin(), positions.end());

  const Matrix& embeddings = matrix("token_embd.weight");
  std::vector<Vector> states;
  for (const TokenId token : tokens) {
    const auto row =
        embeddings.values.begin() + token * static_cast<std::ptrdiff_t>(embeddings.inputs);
    const Vector embedding(row, row + static_cast<std::ptrdiff_t>(embeddings.inputs));
    states.push_back(scale(embedding, embedding_scale_));
  }
  for (std::size_t i = 0; i < n_layers; ++i) {
    const std::string block = block_name(i);
    std::vector<Vector> inputs;
    for (const Vector& state : states) {
      inputs.push_back(normed_input(block + "attn_norm", state));
      append_kv(block, inputs.back(), all.layers[i]);
    }
    const OracleKv::Layer rows = as_attended(all.layers[i], all.positions);
    for (std::size_t t = 0; t < states.size(); ++t) {
      const Vector attended = attend(queries(block, inputs[t]), positions[t], rows, all.positions);
      states[t] = residual(block + "post_attention_norm", states[t],
                           project(block + "attn_output", attended));
      const Vector update = feed_forward(block, normed_input(block + "ffn_norm", states[t]));
      states[t] = residual(block + "post_ffw_norm", states[t], update);
    }
  }

  OracleOutput output;
  const bool tied = matrices_.count("output.weight") == 0;
  for (const Vector& state : states) {
    const Vector normed = rms_norm(state, vector("output_norm.weight"), epsilon_);
    output.logits.push_back(
        scale(matrix(tied ? "token_embd.weight" : "output.weight") * normed, 1.0 / logit_scale_));
  }
  output.kv = all.slice(past.rows(), tokens.size(), 0);
  output.kv.positions.assign(positions.begin(), positions.end());
  return output;
}

}  // namespace inferscale::testing
