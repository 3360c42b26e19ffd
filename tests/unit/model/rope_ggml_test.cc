// The tables must undo what ggml does to keys, so they are compared with ggml's own operation.

#include <ggml-cpu.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "inferscale/model_spec.h"

namespace inferscale {
namespace {

struct Deleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
};

struct Case {
  const char* name;
  RopeSpec spec;
};

constexpr std::int64_t kHeadDim = 64;

float input_at(std::int64_t element, std::int64_t row) {
  return std::sin(static_cast<float>(element * 7 + row * 13));
}

/// [position][kHeadDim] as ggml rotates them.
std::vector<float> rotate_with_ggml(const RopeSpec& spec,
                                    const std::vector<std::int32_t>& positions) {
  const std::unique_ptr<ggml_context, Deleter> owner(ggml_init({16U << 20, nullptr, false}));
  ggml_context* context = owner.get();
  const auto rows = static_cast<std::int64_t>(positions.size());
  ggml_tensor* x = ggml_new_tensor_3d(context, GGML_TYPE_F32, kHeadDim, 1, rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < kHeadDim; ++i) {
      static_cast<float*>(x->data)[row * kHeadDim + i] = input_at(i, row);
    }
  }
  ggml_tensor* where = ggml_new_tensor_1d(context, GGML_TYPE_I32, rows);
  std::copy(positions.begin(), positions.end(), static_cast<std::int32_t*>(where->data));
  ggml_tensor* factors = nullptr;
  if (!spec.freq_factors.empty()) {
    factors = ggml_new_tensor_1d(context, GGML_TYPE_F32, spec.rotary_dim / 2);
    std::copy(spec.freq_factors.begin(), spec.freq_factors.end(),
              static_cast<float*>(factors->data));
  }
  const bool yarn = spec.scaling == RopeScaling::kYarn;
  const int mode =
      spec.pairing == RopePairing::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  ggml_tensor* rotated = ggml_rope_ext(
      context, x, where, factors, static_cast<int>(spec.rotary_dim), mode,
      static_cast<int>(spec.original_context), static_cast<float>(spec.freq_base),
      static_cast<float>(1.0 / spec.scaling_factor),
      yarn ? static_cast<float>(spec.yarn_ext_factor) : 0.0F,
      static_cast<float>(spec.yarn_attn_factor), static_cast<float>(spec.yarn_beta_fast),
      static_cast<float>(spec.yarn_beta_slow));
  ggml_cgraph* graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, rotated);
  EXPECT_EQ(ggml_graph_compute_with_ctx(context, graph, 1), GGML_STATUS_SUCCESS);
  const auto* data = static_cast<const float*>(rotated->data);
  return std::vector<float>(data, data + rows * kHeadDim);
}

std::vector<float> rotate_with_table(const RopeTable& table,
                                     const std::vector<std::int32_t>& positions) {
  std::vector<float> out;
  const std::int64_t pairs = table.pairs();
  for (std::size_t row = 0; row < positions.size(); ++row) {
    std::vector<float> head;
    for (std::int64_t i = 0; i < kHeadDim; ++i) {
      head.push_back(input_at(i, static_cast<std::int64_t>(row)));
    }
    const float* c = table.cos_row(static_cast<std::uint32_t>(positions[row]));
    const float* s = table.sin_row(static_cast<std::uint32_t>(positions[row]));
    for (std::int64_t i = 0; i < pairs; ++i) {
      const bool adjacent = table.spec().pairing == RopePairing::kAdjacent;
      float& first = head[adjacent ? 2 * i : i];
      float& second = head[adjacent ? 2 * i + 1 : i + pairs];
      const float x = first;
      const float y = second;
      first = x * c[i] - y * s[i];
      second = x * s[i] + y * c[i];
    }
    out.insert(out.end(), head.begin(), head.end());
  }
  return out;
}

RopeSpec make_spec(RopePairing pairing, RopeScaling scaling, std::uint32_t rotary_dim = kHeadDim) {
  RopeSpec spec;
  spec.pairing = pairing;
  spec.scaling = scaling;
  spec.rotary_dim = rotary_dim;
  if (scaling == RopeScaling::kLinear || scaling == RopeScaling::kYarn) {
    spec.scaling_factor = 4.0;
  }
  if (scaling == RopeScaling::kLlama3) {
    spec.freq_base = 500000.0;
    for (std::uint32_t i = 0; i < rotary_dim / 2; ++i) {
      spec.freq_factors.push_back(1.0F + 0.2F * static_cast<float>(i));
    }
  }
  if (scaling == RopeScaling::kYarn) {
    spec.original_context = 2048;
    spec.yarn_attn_factor = 1.1;
  }
  return spec;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"none_adjacent", make_spec(RopePairing::kAdjacent, RopeScaling::kNone)});
  all.push_back({"none_halves", make_spec(RopePairing::kHalves, RopeScaling::kNone)});
  all.push_back({"partial_adjacent", make_spec(RopePairing::kAdjacent, RopeScaling::kNone, 32)});
  all.push_back({"partial_halves", make_spec(RopePairing::kHalves, RopeScaling::kNone, 48)});
  all.push_back({"linear", make_spec(RopePairing::kAdjacent, RopeScaling::kLinear)});
  all.push_back({"llama3", make_spec(RopePairing::kAdjacent, RopeScaling::kLlama3)});
  all.push_back({"yarn_halves", make_spec(RopePairing::kHalves, RopeScaling::kYarn)});
  all.push_back({"yarn_adjacent", make_spec(RopePairing::kAdjacent, RopeScaling::kYarn)});
  Case mixed{"yarn_half_mixed", make_spec(RopePairing::kHalves, RopeScaling::kYarn)};
  mixed.spec.yarn_ext_factor = 0.5;
  all.push_back(mixed);
  Case turns{"yarn_betas", make_spec(RopePairing::kHalves, RopeScaling::kYarn)};
  turns.spec.yarn_beta_fast = 16.0;
  turns.spec.yarn_beta_slow = 2.0;
  all.push_back(turns);
  return all;
}

class RopeGgmlTest : public ::testing::TestWithParam<Case> {};

TEST_P(RopeGgmlTest, RotatesLikeGgml) {
  const RopeSpec& spec = GetParam().spec;
  const std::vector<std::int32_t> positions = {0, 1, 2, 7, 63, 500, 2047, 8191};
  const auto table = RopeTable::build(spec, 8192);
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  const std::vector<float> expected = rotate_with_ggml(spec, positions);
  const std::vector<float> actual = rotate_with_table(**table, positions);
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int32_t position = positions[i / kHeadDim];
    // ggml multiplies its angles up in float: their error grows with the position.
    ASSERT_NEAR(actual[i], expected[i], 2e-6 + 1.5e-6 * position)
        << "position " << position << ", element " << i % kHeadDim;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, RopeGgmlTest, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace inferscale
