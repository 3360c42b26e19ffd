#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <memory>

#include "bindings.h"
#include "connector/model_files.h"
#include "convert.h"
#include "errors.h"
#include "inferscale/model_spec.h"

namespace inferscale::python {
namespace {

constexpr std::uint64_t kMaxU32 = 0xFFFFFFFF;

std::uint32_t number_of(const nb::dict& dict, const char* field) {
  return static_cast<std::uint32_t>(to_number(field, field_of(dict, field), kMaxU32));
}

nb::dict dict_of(const nb::dict& dict, const char* field) {
  const nb::object value = field_of(dict, field);
  if (!PyDict_Check(value.ptr())) {
    throw nb::type_error((std::string(field) + " must be a dict").c_str());
  }
  return nb::borrow<nb::dict>(value);
}

KvShape to_shape(const nb::dict& dict) {
  static constexpr const char* kFields[] = {"n_layers", "n_kv_heads", "head_dim_k", "head_dim_v"};
  check_fields("shape", dict, kFields);
  const KvShape shape{number_of(dict, "n_layers"), number_of(dict, "n_kv_heads"),
                      number_of(dict, "head_dim_k"), number_of(dict, "head_dim_v")};
  check(shape.validate());
  return shape;
}

template <typename Value>
Value choice(const nb::dict& dict, const char* field,
             std::span<const std::pair<const char*, Value>> choices) {
  const std::string name = to_text(field, field_of(dict, field));
  std::string names;
  for (const auto& [known, value] : choices) {
    if (name == known) {
      return value;
    }
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  throw nb::value_error((std::string(field) + " must be one of " + names).c_str());
}

RopeSpec to_rope(const nb::dict& dict) {
  static constexpr const char* kFields[] = {"pairing",         "scaling",          "freq_base",
                                            "rotary_dim",      "scaling_factor",   "freq_factors",
                                            "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
                                            "yarn_beta_slow",  "original_context"};
  check_fields("rope", dict, kFields);
  static constexpr std::pair<const char*, RopePairing> kPairings[] = {
      {"adjacent", RopePairing::kAdjacent}, {"halves", RopePairing::kHalves}};
  static constexpr std::pair<const char*, RopeScaling> kScalings[] = {
      {"none", RopeScaling::kNone},
      {"linear", RopeScaling::kLinear},
      {"llama3", RopeScaling::kLlama3},
      {"yarn", RopeScaling::kYarn}};
  RopeSpec rope;
  rope.pairing = choice<RopePairing>(dict, "pairing", kPairings);
  rope.scaling = choice<RopeScaling>(dict, "scaling", kScalings);
  rope.freq_base = to_double("freq_base", field_of(dict, "freq_base"));
  rope.rotary_dim = number_of(dict, "rotary_dim");
  const std::pair<const char*, double*> optional[] = {{"scaling_factor", &rope.scaling_factor},
                                                      {"yarn_ext_factor", &rope.yarn_ext_factor},
                                                      {"yarn_attn_factor", &rope.yarn_attn_factor},
                                                      {"yarn_beta_fast", &rope.yarn_beta_fast},
                                                      {"yarn_beta_slow", &rope.yarn_beta_slow}};
  for (const auto& [field, target] : optional) {
    if (dict.contains(field)) {
      *target = to_double(field, dict[field]);
    }
  }
  if (dict.contains("original_context")) {
    rope.original_context = number_of(dict, "original_context");
  }
  if (dict.contains("freq_factors")) {
    for (const nb::object& factor : to_items("freq_factors", dict["freq_factors"])) {
      rope.freq_factors.push_back(static_cast<float>(to_double("freq_factors", factor)));
    }
  }
  check(rope.validate());
  return rope;
}

ModelSpec to_spec(const nb::dict& dict) {
  static constexpr const char* kFields[] = {
      "architecture",      "name",       "shape",    "rope",
      "trained_positions", "vocab_size", "key_bias", "fingerprint"};
  check_fields("model spec", dict, kFields);
  ModelSpec spec;
  spec.architecture = to_text("architecture", field_of(dict, "architecture"));
  if (dict.contains("name")) {
    spec.name = to_text("name", dict["name"]);
  }
  spec.shape = to_shape(dict_of(dict, "shape"));
  spec.rope = to_rope(dict_of(dict, "rope"));
  if (spec.rope.rotary_dim > spec.shape.head_dim_k) {
    throw nb::value_error("rotary_dim must not be above head_dim_k");
  }
  spec.trained_positions = number_of(dict, "trained_positions");
  spec.vocab_size = number_of(dict, "vocab_size");
  if (dict.contains("key_bias")) {
    for (const nb::object& channel : to_items("key_bias", dict["key_bias"])) {
      spec.key_bias.push_back(static_cast<float>(to_double("key_bias", channel)));
    }
    check(check_key_bias(spec.key_bias, spec.shape));
  }
  spec.fingerprint = to_hash("fingerprint", field_of(dict, "fingerprint"));
  return spec;
}

using Table = std::shared_ptr<const RopeTable>;

/// A view of a table's cosines or sines [positions, pairs] that keeps the table.
nb::object table_view(const Table& table, const float* rows) {
  nb::capsule owner(new Table(table),
                    [](void* kept) noexcept { delete static_cast<Table*>(kept); });
  const std::size_t shape[] = {table->max_positions(), table->pairs()};
  return nb::cast(nb::ndarray<nb::numpy, const float, nb::ndim<2>>(rows, 2, shape, owner));
}

}  // namespace

void bind_spec(nb::module_& m) {
  nb::class_<ModelSpec>(m, "ModelSpec", "What of a model decides its keys and values.")
      .def(
          "__init__",
          [](ModelSpec* self, const nb::dict& fields) { new (self) ModelSpec(to_spec(fields)); },
          nb::arg("fields"))
      .def_static("from_dict", &to_spec, nb::arg("fields"),
                  "architecture, shape, rope, trained_positions, vocab_size, fingerprint, and "
                  "key_bias, [n_layers * n_kv_heads * head_dim_k], where there is one; raises "
                  "ValueError for a field that is missing, unknown or out of range.")
      .def_ro("architecture", &ModelSpec::architecture)
      .def_prop_ro("fingerprint", [](const ModelSpec& spec) { return spec.fingerprint.to_hex(); })
      .def_prop_ro(
          "rope_bytes",
          [](const ModelSpec& spec) {
            const std::string bytes = spec.rope.canonical_bytes();
            return nb::bytes(bytes.data(), bytes.size());
          },
          "Equal exactly where two rotary embeddings are.")
      .def_prop_ro("shape", [](const ModelSpec& spec) {
        nb::dict shape;
        shape["n_layers"] = spec.shape.n_layers;
        shape["n_kv_heads"] = spec.shape.n_kv_heads;
        shape["head_dim_k"] = spec.shape.head_dim_k;
        shape["head_dim_v"] = spec.shape.head_dim_v;
        return shape;
      });
  m.def(
      "rope_table",
      [](const ModelSpec& spec, std::uint32_t max_positions) {
        Result<Table> built = [&] {
          nb::gil_scoped_release unlocked;
          return RopeTable::build(spec.rope, max_positions);
        }();
        const Table table = take(std::move(built));
        return nb::make_tuple(table_view(table, table->cos_row(0)),
                              table_view(table, table->sin_row(0)));
      },
      nb::arg("spec"), nb::arg("max_positions"),
      nb::sig("def rope_table(spec: ModelSpec, max_positions: int) -> "
              "tuple[numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]]"),
      "The cosines and sines [max_positions, rotary_dim / 2] that keys are rotated with.");
  m.def(
      "hf_fingerprint",
      [](const std::vector<std::filesystem::path>& files, const nb::bytes& canonical,
         const std::filesystem::path& cache_directory) {
        const std::span<const std::byte> bytes = as_bytes(canonical);
        Result<Hash128> fingerprint = [&] {
          nb::gil_scoped_release unlocked;
          return model_files_fingerprint(files, bytes, cache_directory);
        }();
        return take(std::move(fingerprint)).to_hex();
      },
      nb::arg("files"), nb::arg("canonical"), nb::arg("cache_directory") = std::filesystem::path(),
      "A hash of the files' names and contents and of `canonical`. With a cache directory, files "
      "that have not changed are not read again.");
}

}  // namespace inferscale::python
