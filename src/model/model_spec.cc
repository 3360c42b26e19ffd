#include "inferscale/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace inferscale {
namespace {

constexpr std::uint32_t kLargest = 1024;

Status check_size(const char* field, std::uint32_t value) {
  if (value < 1 || value > kLargest) {
    return invalid_argument(fmt::format("{} must be in 1..{}, not {}", field, kLargest, value));
  }
  return Status();
}

}  // namespace

Status KvShape::validate() const {
  INFERSCALE_RETURN_IF_ERROR(check_size("n_layers", n_layers));
  INFERSCALE_RETURN_IF_ERROR(check_size("n_kv_heads", n_kv_heads));
  INFERSCALE_RETURN_IF_ERROR(check_size("head_dim_k", head_dim_k));
  INFERSCALE_RETURN_IF_ERROR(check_size("head_dim_v", head_dim_v));
  if (head_dim_k % 2 != 0) {
    return invalid_argument(fmt::format("head_dim_k must be even, not {}", head_dim_k));
  }
  return Status();
}

Status check_key_bias(std::span<const float> key_bias, const KvShape& shape) {
  const std::size_t expected = shape.n_layers * shape.k_elements();
  if (!key_bias.empty() && key_bias.size() != expected) {
    return invalid_argument(
        fmt::format("key_bias must have {} elements or none, not {}", expected, key_bias.size()));
  }
  if (!std::all_of(key_bias.begin(), key_bias.end(), [](float b) { return std::isfinite(b); })) {
    return invalid_argument("key_bias has an element that is not finite");
  }
  return Status();
}

}  // namespace inferscale
