#include "unit/kernels/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

namespace inferscale::kernels {
namespace {

struct Pair {
  double x = 0;
  double y = 0;
};

Pair turned(Pair in, Turn turn, double c, double s) {
  if (turn == Turn::kForward) {
    return {in.x * c - in.y * s, in.y * c + in.x * s};
  }
  const double norm = c * c + s * s;
  return {(in.x * c + in.y * s) / norm, (in.y * c - in.x * s) / norm};
}

// What the kernel may be off by: its fp32 cos, sin, products and sum err by about 2^-24 of the
// pair's norm each.
double allowed_error(KvCodec codec, double exact, double norm) {
  const double arithmetic = 4 * std::ldexp(1.0, -24) * norm;
  return 0.5 * last_place(codec, exact) + arithmetic;
}

// Finite positive halves in rising order; their index is their bit pattern.
const std::vector<double>& half_values() {
  static const std::vector<double> values = [] {
    std::vector<double> list;
    for (std::uint16_t bits = 0; bits < 0x7C00; ++bits) {
      list.push_back(half_value(bits));
    }
    return list;
  }();
  return values;
}

// Drawing and rounding every element anew would take most of the tests' time.
constexpr std::size_t kPoolElements = 20011;  // prime, so that no shape's rows repeat

const std::vector<std::byte>& random_elements(KvCodec codec) {
  static std::map<KvCodec, std::vector<std::byte>> pools;
  std::vector<std::byte>& pool = pools[codec];
  if (pool.empty()) {
    std::mt19937_64 random(17);
    std::normal_distribution<double> normal;
    const std::size_t bytes = codec_element_bytes(codec);
    pool.resize(kPoolElements * bytes);
    for (std::size_t i = 0; i < kPoolElements; ++i) {
      const std::uint64_t kind = random() % 16;
      const double scale = kind == 0 ? 40.0 : kind == 1 ? 1e-5 : 1.0;
      write_element(codec, scale * normal(random), pool.data() + i * bytes);
    }
  }
  return pool;
}

::testing::AssertionResult element_differs(const char* what, std::size_t element, double got,
                                           double want) {
  return ::testing::AssertionFailure() << what << " " << element << " is " << got << ", not "
                                       << want << " (off by " << got - want << ")";
}

::testing::AssertionResult copied(KvCodec from_codec, const std::byte* from, KvCodec to_codec,
                                  const std::byte* to, std::size_t element) {
  const std::size_t to_bytes = codec_element_bytes(to_codec);
  std::byte want[4] = {};
  if (from_codec == to_codec) {
    std::memcpy(want, from, to_bytes);
  } else if (to_codec == KvCodec::kF32) {
    std::uint16_t half = 0;
    std::memcpy(&half, from, sizeof(half));
    const float value = float_from_half(half);
    std::memcpy(want, &value, sizeof(value));
  } else {
    float value = 0;
    std::memcpy(&value, from, sizeof(value));
    const std::uint16_t half = half_from_float(value);
    std::memcpy(want, &half, sizeof(half));
  }
  if (std::memcmp(want, to, to_bytes) != 0) {
    return element_differs("copied element", element, read_element(to_codec, to),
                           read_element(to_codec, want));
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

double half_value(std::uint16_t half) {
  const int exponent = (half >> 10) & 0x1F;
  const int mantissa = half & 0x3FF;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) {
    return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

std::uint16_t nearest_half(double value) {
  if (std::isnan(value)) {
    return 0x7E00;
  }
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520.0) {  // halfway between the largest finite value and 2^16
    return sign | 0x7C00;
  }
  const std::vector<double>& values = half_values();
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  auto bits = static_cast<std::uint16_t>(above - values.begin());
  if (above == values.end()) {
    bits = 0x7BFF;
  } else if (*above != magnitude) {
    const double up = *above - magnitude;
    const double down = magnitude - *(above - 1);
    if (down < up || (down == up && bits % 2 == 1)) {
      --bits;
    }
  }
  return sign | bits;
}

std::uint16_t half_from_float(float value) {
  if (!std::isnan(value)) {
    return nearest_half(value);
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | 0x7E00U | ((bits >> 13) & 0x3FFU));
}

float float_from_half(std::uint16_t half) {
  if ((half & 0x7FFF) <= 0x7C00) {
    return static_cast<float>(half_value(half));
  }
  const std::uint32_t sign = (half & 0x8000U) << 16;
  return std::bit_cast<float>(sign | 0x7FC00000U | ((half & 0x3FFU) << 13));
}

double read_element(KvCodec codec, const std::byte* from) {
  if (codec == KvCodec::kF16) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof(bits));
    return half_value(bits);
  }
  float value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

void write_element(KvCodec codec, double value, std::byte* to) {
  if (codec == KvCodec::kF16) {
    const std::uint16_t bits = nearest_half(value);
    std::memcpy(to, &bits, sizeof(bits));
  } else {
    const auto single = static_cast<float>(value);
    std::memcpy(to, &single, sizeof(single));
  }
}

double rounded(KvCodec codec, double value) {
  std::byte element[4] = {};
  write_element(codec, value, element);
  return read_element(codec, element);
}

double last_place(KvCodec codec, double value) {
  const bool half = codec == KvCodec::kF16;
  const int lowest = half ? -24 : -149;
  const int mantissa_bits = half ? 10 : 23;
  const int exponent = value == 0 ? lowest : std::ilogb(value) - mantissa_bits;
  return std::ldexp(1.0, std::max(exponent, lowest));
}

ReferenceRotation::ReferenceRotation(const RopeSpec& spec, Turn turn, std::uint32_t position)
    : pairing_(spec.pairing), turn_(turn) {
  for (const double frequency : spec.angular_frequencies()) {
    cos_.push_back(std::cos(position * frequency) * spec.mscale());
    sin_.push_back(std::sin(position * frequency) * spec.mscale());
  }
}

::testing::AssertionResult ReferenceRotation::turns(std::size_t head_dim, Head from,
                                                    Head to) const {
  const std::size_t n = cos_.size();
  for (std::size_t i = 0; i < n; ++i) {
    const bool adjacent = pairing_ == RopePairing::kAdjacent;
    const std::size_t ix = adjacent ? 2 * i : i;
    const std::size_t iy = adjacent ? 2 * i + 1 : i + n;
    const Pair in{read_element(from.codec, from.at(ix)), read_element(from.codec, from.at(iy))};
    const Pair want = turned(in, turn_, cos_[i], sin_[i]);
    const double norm = std::hypot(want.x, want.y);
    const double got_x = read_element(to.codec, to.at(ix));
    const double got_y = read_element(to.codec, to.at(iy));
    if (!(std::fabs(got_x - want.x) <= allowed_error(to.codec, want.x, norm))) {
      return element_differs("rotated element", ix, got_x, want.x);
    }
    if (!(std::fabs(got_y - want.y) <= allowed_error(to.codec, want.y, norm))) {
      return element_differs("rotated element", iy, got_y, want.y);
    }
  }
  const std::size_t rotated = 2 * n;
  return is_converted(head_dim - rotated, {from.codec, from.at(rotated), from.stride},
                      {to.codec, to.at(rotated), to.stride});
}

::testing::AssertionResult is_converted(std::size_t count, Head from, Head to) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto result = copied(from.codec, from.at(i), to.codec, to.at(i), i);
    if (!result) {
      return result;
    }
  }
  return ::testing::AssertionSuccess();
}

std::vector<RopeSpec> specs_of_every_scaling(RopePairing pairing, std::uint32_t rotary_dim) {
  RopeSpec plain;
  plain.pairing = pairing;
  plain.rotary_dim = rotary_dim;
  RopeSpec linear = plain;
  linear.scaling = RopeScaling::kLinear;
  linear.scaling_factor = 4.0;
  RopeSpec llama3 = plain;
  llama3.scaling = RopeScaling::kLlama3;
  llama3.freq_base = 500000.0;
  for (std::uint32_t i = 0; i < rotary_dim / 2; ++i) {
    llama3.freq_factors.push_back(1.0F +
                                  7.0F * static_cast<float>(i) / static_cast<float>(rotary_dim));
  }
  RopeSpec yarn = plain;
  yarn.scaling = RopeScaling::kYarn;
  yarn.scaling_factor = 4.0;
  yarn.original_context = 2048;
  return {plain, linear, llama3, yarn};
}

std::string describe(const RopeSpec& spec) {
  const char* scalings[] = {"none", "linear", "llama3", "yarn"};
  return std::string(spec.pairing == RopePairing::kAdjacent ? "adjacent" : "halves") + " " +
         scalings[static_cast<int>(spec.scaling)] + " rotary_dim " +
         std::to_string(spec.rotary_dim);
}

std::string describe(const KvShape& shape) {
  return std::to_string(shape.n_layers) + " layers, " + std::to_string(shape.n_kv_heads) +
         " heads of " + std::to_string(shape.head_dim_k) + "/" + std::to_string(shape.head_dim_v);
}

std::shared_ptr<const RopeTable> table_of(const RopeSpec& spec, std::uint32_t max_positions) {
  static std::map<std::string, std::shared_ptr<const RopeTable>> tables;
  auto& table = tables[spec.canonical_bytes() + std::to_string(max_positions)];
  if (table == nullptr) {
    auto built = RopeTable::build(spec, max_positions);
    if (!built.ok()) {
      ADD_FAILURE() << built.status().to_string();
      std::abort();  // the table is another component's; nothing here can be tested without it
    }
    table = *built;
  }
  return table;
}

void fill_random(KvCodec codec, std::byte* to, std::size_t count, std::uint64_t seed) {
  const std::vector<std::byte>& pool = random_elements(codec);
  const std::size_t bytes = codec_element_bytes(codec);
  std::size_t next = (seed * 2654435761U) % kPoolElements;
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * bytes, pool.data() + next * bytes, bytes);
    next = next + 1 == kPoolElements ? 0 : next + 1;
  }
}

RecordMeta meta_of(const KvShape& shape, KvCodec codec) {
  RecordMeta meta;
  meta.shape = shape;
  meta.codec = codec;
  return meta;
}

std::shared_ptr<const Record> random_record(const RecordMeta& meta, std::uint32_t n_tokens,
                                            std::uint64_t seed) {
  std::vector<TokenId> ids(n_tokens);
  for (std::uint32_t t = 0; t < n_tokens; ++t) {
    ids[t] = static_cast<TokenId>(t);
  }
  auto builder = RecordBuilder::create(meta, ids);
  if (!builder.ok()) {
    ADD_FAILURE() << builder.status().to_string();
    return nullptr;
  }
  for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
    fill_random(meta.codec, builder->layer_k(layer), n_tokens * meta.shape.k_elements(),
                seed + 2 * layer);
    fill_random(meta.codec, builder->layer_v(layer), n_tokens * meta.shape.v_elements(),
                seed + 2 * layer + 1);
  }
  return std::move(*builder).seal();
}

}  // namespace inferscale::kernels
