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

// The place of what is nearest in an ascending list, of two equally near ones the even place.
std::size_t nearest_place(const std::vector<double>& values, double value) {
  const auto above = std::lower_bound(values.begin(), values.end(), value);
  auto place = static_cast<std::size_t>(above - values.begin());
  if (above == values.end()) {
    return values.size() - 1;
  }
  if (*above != value) {
    const double up = *above - value;
    const double down = value - *(above - 1);
    if (down < up || (down == up && place % 2 == 1)) {
      --place;
    }
  }
  return place;
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
      if (codec_is_scaled(codec)) {
        const auto bits = static_cast<std::uint8_t>(random());
        pool[i] = std::byte{(bits & 0x7F) == 0x7F ? std::uint8_t{0} : bits};
        continue;
      }
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

float load_float(KvCodec codec, const std::byte* from) {
  if (codec == KvCodec::kF32) {
    float value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return codec == KvCodec::kF16 ? float_from_half(bits)
                                : std::bit_cast<float>(std::uint32_t{bits} << 16);
}

void store_float(KvCodec codec, float value, std::byte* to) {
  if (codec == KvCodec::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits = codec == KvCodec::kF16 ? half_from_float(value) : bf16_of_float(value);
  std::memcpy(to, &bits, sizeof(bits));
}

// |got - want| is at most half a step and what `want` itself is uncertain by.
::testing::AssertionResult is_quantised(const std::vector<double>& want,
                                        const std::vector<double>& slack, const Head& to) {
  double largest = 0;
  double most_slack = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::fabs(want[i]));
    most_slack = std::max(most_slack, slack[i]);
  }
  const double fewest = reference_scale(to.codec, largest - most_slack);
  const double most = reference_scale(to.codec, largest + most_slack);
  if (!(to.scale >= fewest && to.scale <= most)) {
    return ::testing::AssertionFailure()
           << "scale is " << to.scale << ", not within " << fewest << ".." << most;
  }
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double allowed = half_step(to.codec, std::fabs(want[i]) + slack[i], to.scale) + slack[i];
    if (!(std::fabs(to.stored(i) - want[i]) <= allowed)) {
      return element_differs("quantised element", i, to.stored(i), want[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult quantised_exactly(std::size_t count, const Head& from, const Head& to) {
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(from.value(i)));
  }
  if (to.scale != reference_scale(to.codec, largest)) {
    return ::testing::AssertionFailure()
           << "scale is " << to.scale << ", not " << reference_scale(to.codec, largest);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double want = reference_element(to.codec, static_cast<float>(from.value(i)), to.scale);
    if (read_element(to.codec, to.at(i)) != want) {
      return element_differs("quantised element", i, read_element(to.codec, to.at(i)), want);
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult copied(const Head& source, KvCodec to_codec, const std::byte* to,
                                  std::size_t element) {
  const std::size_t to_bytes = codec_element_bytes(to_codec);
  const std::byte* from = source.at(element);
  std::byte want[4] = {};
  if (source.codec == to_codec) {
    std::memcpy(want, from, to_bytes);
  } else if (codec_is_scaled(source.codec)) {
    store_float(to_codec, static_cast<float>(source.value(element)), want);  // which is exact
  } else {
    store_float(to_codec, load_float(source.codec, from), want);
  }
  if (std::memcmp(want, to, to_bytes) != 0) {
    return element_differs("copied element", element, read_element(to_codec, to),
                           read_element(to_codec, want));
  }
  return ::testing::AssertionSuccess();
}

double e4m3_value(std::uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  const double sign = (bits & 0x80) != 0 ? -1.0 : 1.0;
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
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
  return sign | static_cast<std::uint16_t>(nearest_place(half_values(), magnitude));
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

std::uint16_t nearest_bf16(double value) {
  if (std::isnan(value)) {
    return 0x7FC0;
  }
  if (std::isinf(value) || value == 0) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >>
                                      16);
  }
  const double step = last_place(KvCodec::kBf16, value);
  const auto near = static_cast<float>(std::nearbyint(value / step) * step);  // ties to even
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(near) >> 16);
}

std::uint16_t bf16_of_float(float value) {
  if (!std::isnan(value)) {
    return nearest_bf16(value);
  }
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) >> 16) | 0x40U);
}

double reference_scale(KvCodec codec, double largest) {
  if (!(largest < std::ldexp(1.0, 127))) {
    return std::nan("");
  }
  if (largest < std::ldexp(1.0, -100)) {
    return 0;
  }
  const double exact = static_cast<float>(largest / (codec == KvCodec::kQ8 ? 127 : 448));
  const double step = std::ldexp(1.0, std::ilogb(exact) - 15);
  return std::ceil(exact / step) * step;
}

double reference_element(KvCodec codec, float value, float scale) {
  if (scale == 0) {
    return 0;
  }
  const double quotient = static_cast<float>(double{value} / scale);
  if (codec == KvCodec::kQ8) {
    return std::nearbyint(quotient);
  }
  static const std::vector<double> values = [] {
    std::vector<double> list;
    for (std::uint8_t bits = 0; bits < 0x7F; ++bits) {
      list.push_back(e4m3_value(bits));
    }
    return list;
  }();
  return std::copysign(values[nearest_place(values, std::fabs(quotient))], quotient);
}

double half_step(KvCodec codec, double value, double scale) {
  double step = 1;
  if (codec == KvCodec::kFp8E4m3) {
    const double magnitude = scale > 0 ? std::fabs(value / scale) : 0;
    step = std::ldexp(1.0, magnitude < std::ldexp(1.0, -6) ? -9 : std::ilogb(magnitude) - 3);
  }
  return scale * step * (0.5 + std::ldexp(1.0, -17));
}

double read_element(KvCodec codec, const std::byte* from) {
  if (codec == KvCodec::kQ8) {
    return static_cast<std::int8_t>(*from);
  }
  if (codec == KvCodec::kFp8E4m3) {
    return e4m3_value(static_cast<std::uint8_t>(*from));
  }
  if (codec != KvCodec::kF16) {
    return load_float(codec, from);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return half_value(bits);
}

void write_element(KvCodec codec, double value, std::byte* to) {
  if (codec == KvCodec::kF32) {
    const auto single = static_cast<float>(value);
    std::memcpy(to, &single, sizeof(single));
    return;
  }
  const std::uint16_t bits = codec == KvCodec::kF16 ? nearest_half(value) : nearest_bf16(value);
  std::memcpy(to, &bits, sizeof(bits));
}

double rounded(KvCodec codec, double value) {
  std::byte element[4] = {};
  write_element(codec, value, element);
  return read_element(codec, element);
}

double last_place(KvCodec codec, double value) {
  const int mantissa_bits = codec == KvCodec::kF16 ? 10 : codec == KvCodec::kF32 ? 23 : 7;
  const int lowest = (codec == KvCodec::kF16 ? -14 : -126) - mantissa_bits;
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
  std::vector<double> want(head_dim);  // stored, without the bias that `to` lacks
  std::vector<double> norm(head_dim);  // what fp32's error is relative to
  const auto expect = [&](std::size_t i, double value, double of) {
    want[i] = value - to.bias_at(i);
    norm[i] = of + std::fabs(to.bias_at(i));
  };
  for (std::size_t i = 2 * n; i < head_dim; ++i) {
    expect(i, from.value(i), from.bias == nullptr ? 0 : std::fabs(from.value(i)));
  }
  for (std::size_t i = 0; i < n; ++i) {
    const bool adjacent = pairing_ == RopePairing::kAdjacent;
    const std::size_t ix = adjacent ? 2 * i : i;
    const std::size_t iy = adjacent ? 2 * i + 1 : i + n;
    const Pair out = turned({from.value(ix), from.value(iy)}, turn_, cos_[i], sin_[i]);
    expect(ix, out.x, std::hypot(out.x, out.y));
    expect(iy, out.y, std::hypot(out.x, out.y));
  }
  if (codec_is_scaled(to.codec)) {
    std::vector<double> slack(head_dim);
    for (std::size_t i = 0; i < head_dim; ++i) {
      slack[i] = norm[i] == 0 ? 0 : allowed_error(KvCodec::kF32, want[i], norm[i]);
    }
    return is_quantised(want, slack, to);
  }
  const bool biased = from.bias != nullptr || to.bias != nullptr;
  for (std::size_t i = 0; i < (biased ? head_dim : 2 * n); ++i) {
    if (!(std::fabs(to.stored(i) - want[i]) <= allowed_error(to.codec, want[i], norm[i]))) {
      return element_differs("rotated element", i, to.stored(i), want[i]);
    }
  }
  const std::size_t rest = biased ? head_dim : 2 * n;
  return is_converted(head_dim - rest, {from.codec, from.at(rest), from.stride, from.scale},
                      {to.codec, to.at(rest), to.stride});
}

::testing::AssertionResult is_converted(std::size_t count, Head from, Head to) {
  if (codec_is_scaled(to.codec)) {
    return quantised_exactly(count, from, to);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto result = copied(from, to.codec, to.at(i), i);
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

std::shared_ptr<const RopeTable> table_of(const RopeSpec& spec, std::uint32_t max_positions,
                                          const std::vector<float>& bias) {
  static std::map<std::string, std::shared_ptr<const RopeTable>> tables;
  auto& table =
      tables[spec.canonical_bytes() + std::to_string(max_positions) +
             std::string(reinterpret_cast<const char*>(bias.data()), bias.size() * sizeof(float))];
  if (table == nullptr) {
    auto built = RopeTable::build(spec, max_positions, bias);
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

std::vector<float> large_bias(const KvShape& shape) {
  std::vector<float> bias(shape.n_layers * shape.k_elements());
  std::mt19937_64 random(23);
  std::normal_distribution<double> normal;
  for (float& channel : bias) {
    const std::uint64_t kind = random() % 16;
    channel = kind == 0 ? 200.0F : kind == 1 ? -200.0F : static_cast<float>(normal(random));
  }
  return bias;
}

RecordMeta meta_of(const KvShape& shape, KvCodec codec) {
  RecordMeta meta;
  meta.shape = shape;
  meta.codec = codec;
  return meta;
}

void fill_scales(RecordBuilder& builder, std::uint64_t seed) {
  if (!codec_is_scaled(builder.meta().codec)) {
    return;
  }
  std::mt19937_64 random(seed);
  const KvShape& shape = builder.meta().shape;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (const KvPart part : {KvPart::kKScales, KvPart::kVScales}) {
      for (std::size_t i = 0; i < std::size_t{builder.n_tokens()} * shape.n_kv_heads; ++i) {
        const std::uint64_t draw = random();
        const double largest = draw % 16 == 0 ? 1e-5 : std::ldexp(double(draw >> 40), -22);
        const auto scale = static_cast<float>(reference_scale(builder.meta().codec, largest));
        std::memcpy(builder.layer_part(layer, part) + i * sizeof(scale), &scale, sizeof(scale));
      }
    }
  }
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
  fill_scales(*builder, seed);
  return std::move(*builder).seal();
}

}  // namespace inferscale::kernels
