#include "inferscale/model_spec.h"

#include <fmt/format.h>

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

}  // namespace inferscale
