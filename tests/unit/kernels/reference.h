#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/model_spec.h"

// The kernels once more: one element at a time, in double, written for reading.
namespace inferscale::kernels {

/// The value of an f16 (infinities and NaN included).
double half_value(std::uint16_t half);
/// The f16 nearest to `value`, ties to even; NaN gives 0x7E00.
std::uint16_t nearest_half(double value);
/// The f16 that a float becomes: nearest_half, and NaNs keep sign and leading payload bits.
std::uint16_t half_from_float(float value);
/// The float that an f16 becomes: its value, and NaNs become quiet and keep sign and payload.
float float_from_half(std::uint16_t half);

/// The bf16 nearest to `value`, ties to even; NaN gives 0x7FC0.
std::uint16_t nearest_bf16(double value);
/// The bf16 that a float becomes: nearest_bf16, and NaNs keep sign and leading payload bits.
std::uint16_t bf16_of_float(float value);

/// An element of a scaled codec is what its scale is multiplied with.
double read_element(KvCodec codec, const std::byte* from);
void write_element(KvCodec codec, double value, std::byte* to);
/// `value` rounded to the codec's nearest element.
double rounded(KvCodec codec, double value);
/// Distance between neighbouring elements at `value`.
double last_place(KvCodec codec, double value);

/// The scale of a head whose largest magnitude is this, NaN included; and the element that a value
/// becomes under it.
double reference_scale(KvCodec codec, double largest);
double reference_element(KvCodec codec, float value, float scale);
/// How far an element may be from its value: half the distance of the elements around it, and that
/// the quotient of value and scale was rounded to fp32 before (2^-17 of a step at most).
double half_step(KvCodec codec, double value, double scale);

enum class Turn { kForward, kBack };  // compose, capture

struct Head {
  KvCodec codec = KvCodec::kF16;
  const std::byte* data = nullptr;
  std::size_t stride = 0;       ///< bytes from one element to the next; 0: contiguous
  float scale = 1;              ///< of a scaled codec
  const float* bias = nullptr;  ///< of what lacks it: what the elements are less than their values

  [[nodiscard]] const std::byte* at(std::size_t i) const {
    return data + i * (stride == 0 ? codec_element_bytes(codec) : stride);
  }
  [[nodiscard]] double stored(std::size_t i) const { return scale * read_element(codec, at(i)); }
  [[nodiscard]] double bias_at(std::size_t i) const { return bias == nullptr ? 0 : bias[i]; }
  [[nodiscard]] double value(std::size_t i) const {
    return bias == nullptr ? stored(i) : stored(i) + bias[i];
  }
};

/// A head of a record or of a builder; `part`: of the elements.
template <typename Packed>
Head packed_head(Packed& record, std::uint32_t layer, KvPart part, std::size_t token,
                 std::size_t head) {
  const KvShape& shape = record.meta().shape;
  const KvCodec codec = record.meta().codec;
  const std::size_t cell = token * shape.n_kv_heads + head;
  const std::size_t dim = part == KvPart::kK ? shape.head_dim_k : shape.head_dim_v;
  Head out{codec, record.layer_part(layer, part) + cell * dim * codec_element_bytes(codec)};
  if (codec_is_scaled(codec)) {
    const KvPart scales = part == KvPart::kK ? KvPart::kKScales : KvPart::kVScales;
    std::memcpy(&out.scale, record.layer_part(layer, scales) + cell * sizeof(float), sizeof(float));
  }
  return out;
}

/// The rotation of one position, from the spec alone: tables are not used.
class ReferenceRotation {
 public:
  ReferenceRotation(const RopeSpec& spec, Turn turn, std::uint32_t position);

  /// Is `to` what the head `from` becomes? Rotated elements within one rounding of the target's
  /// type plus the fp32 arithmetic's own error, which is relative to the pair's norm; the others
  /// bit for bit, or with a bias within one rounding. A scaled `to` is quantised as a whole, so all
  /// its elements are within half a step plus that error.
  [[nodiscard]] ::testing::AssertionResult turns(std::size_t head_dim, Head from, Head to) const;

 private:
  RopePairing pairing_;
  Turn turn_;
  std::vector<double> cos_;  // mscale included
  std::vector<double> sin_;
};

/// Is `to` the bit-exact copy, or the correctly rounded conversion, of `from`? A scaled `to` is
/// that of a whole head: then scale and elements must be the reference's own.
::testing::AssertionResult is_converted(std::size_t count, Head from, Head to);

/// Specs of the four scalings; YaRN's has mscale != 1.
std::vector<RopeSpec> specs_of_every_scaling(RopePairing pairing, std::uint32_t rotary_dim);
std::string describe(const RopeSpec& spec);
std::string describe(const KvShape& shape);

/// The table of a spec and a bias, built once per process.
std::shared_ptr<const RopeTable> table_of(const RopeSpec& spec, std::uint32_t max_positions,
                                          const std::vector<float>& bias = {});

/// Elements that look like keys: about normal, some large, some subnormal in f16; of a scaled codec
/// any elements.
void fill_random(KvCodec codec, std::byte* to, std::size_t count, std::uint64_t seed);

/// A key bias that is about normal, and 200 or -200 in some channels of every head.
std::vector<float> large_bias(const KvShape& shape);

RecordMeta meta_of(const KvShape& shape, KvCodec codec);
/// Scales of some size for every head, where the builder's codec has them.
void fill_scales(RecordBuilder& builder, std::uint64_t seed);
/// A record with random layers.
std::shared_ptr<const Record> random_record(const RecordMeta& meta, std::uint32_t n_tokens,
                                            std::uint64_t seed);

}  // namespace inferscale::kernels
