#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "inferscale/kv_record.h"
#include "unit/kv/files.h"
#include "unit/kv/sample_records.h"

namespace inferscale::testing {
namespace {

/// Files of tests/golden: `whole` is what the encoder makes, `damage` what happened to it since.
/// They are never changed: a new format version adds files. INFERSCALE_WRITE_GOLDEN=1 writes those
/// that do not exist yet.
struct Golden {
  std::string name;
  std::function<std::shared_ptr<const Record>()> whole;
  std::function<void(std::vector<std::byte>&)> damage;  ///< null: an intact file
};

auto flip(std::size_t offset) {
  return [offset](std::vector<std::byte>& bytes) { bytes.at(offset) ^= std::byte{0x04}; };
}

auto cut(std::size_t size) {
  return [size](std::vector<std::byte>& bytes) { bytes.resize(size); };
}

std::shared_ptr<const Record> make_f32() {
  return make_record({KvCodec::kF32, {2, 2, 4, 2}, 3, 0x55, 42});
}

std::shared_ptr<const Record> make_bf16() {
  return make_record({KvCodec::kBf16, {2, 2, 4, 2}, 3, 0x66, 43});
}

std::shared_ptr<const Record> make_q8() {
  return make_record({KvCodec::kQ8, {2, 2, 4, 2}, 3, 0x77, 44});
}

std::shared_ptr<const Record> make_fp8() {
  return make_record({KvCodec::kFp8E4m3, {2, 2, 4, 2}, 3, 0x88, 45});
}

std::shared_ptr<const Record> make_q4() {
  return make_record({KvCodec::kQ4, {2, 2, 4, 3}, 3, 0x99, 46});
}

/// The first key's first mean becomes infinite, with checksums that match.
void spoil_mean(std::vector<std::byte>& bytes) {
  bytes.at(272) = std::byte{0x00};
  bytes.at(273) = std::byte{0x7C};
  reseal(bytes);
}

/// Four bits behind the first value's three elements.
void spoil_half(std::vector<std::byte>& bytes) {
  bytes.at(205) |= std::byte{0x10};
  reseal(bytes);
}

void spoil_element(std::vector<std::byte>& bytes) {
  bytes.at(200) = std::byte{0xFF};
  reseal(bytes);
}

/// The first key's scale becomes infinite, with checksums that match.
void spoil_scale(std::vector<std::byte>& bytes) {
  const float bad = std::numeric_limits<float>::infinity();
  std::memcpy(bytes.data() + 240, &bad, sizeof(bad));
  reseal(bytes);
}

std::vector<Golden> golden_files() {
  return {
      {"record-v1-f16.iskv", make_tiny_record, nullptr},
      {"record-v1-f16.header-flipped.iskv", make_tiny_record, flip(84)},
      {"record-v1-f16.token-flipped.iskv", make_tiny_record, flip(153)},
      {"record-v1-f16.payload-flipped.iskv", make_tiny_record, flip(193)},
      {"record-v1-f16.padding-flipped.iskv", make_tiny_record, flip(255)},
      {"record-v1-f16.header-truncated.iskv", make_tiny_record, cut(151)},
      {"record-v1-f16.payload-truncated.iskv", make_tiny_record, cut(255)},
      {"record-v1-f32.iskv", make_f32, nullptr},
      {"record-v1-f32.payload-flipped.iskv", make_f32, flip(300)},
      {"record-v1-f32.payload-truncated.iskv", make_f32, cut(320)},
      {"record-v1-bf16.iskv", make_bf16, nullptr},
      {"record-v1-bf16.payload-flipped.iskv", make_bf16, flip(260)},
      {"record-v1-bf16.payload-truncated.iskv", make_bf16, cut(300)},
      {"record-v1-q8.iskv", make_q8, nullptr},
      {"record-v1-q8.payload-flipped.iskv", make_q8, flip(200)},
      {"record-v1-q8.scale-infinite.iskv", make_q8, spoil_scale},
      {"record-v1-fp8_e4m3.iskv", make_fp8, nullptr},
      {"record-v1-fp8_e4m3.element-nan.iskv", make_fp8, spoil_element},
      {"record-v1-q4.iskv", make_q4, nullptr},
      {"record-v1-q4.payload-flipped.iskv", make_q4, flip(200)},
      {"record-v1-q4.mean-infinite.iskv", make_q4, spoil_mean},
      {"record-v1-q4.half-set.iskv", make_q4, spoil_half},
  };
}

class GoldenRecord : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenRecord, IsWhatTheEncoderMakesAndTheDecoderJudges) {
  const Golden& golden = GetParam();
  const auto path = std::filesystem::path(INFERSCALE_SOURCE_DIR) / "tests/golden" / golden.name;
  const auto record = golden.whole();
  std::vector<std::byte> expected = copy_bytes(*record);
  if (golden.damage) {
    golden.damage(expected);
  }
  if (std::getenv("INFERSCALE_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(path)) {
    write_bytes(path, expected);
  }
  const std::vector<std::byte> stored = read_bytes(path);
  ASSERT_FALSE(stored.empty()) << path;
  EXPECT_EQ(stored, expected);
  const auto parsed = Record::parse(stored);
  if (golden.damage) {
    EXPECT_EQ(parsed.status().code(), StatusCode::kDataLoss);
    return;
  }
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ((*parsed)->meta(), record->meta());
  for (std::uint32_t layer = 0; layer < record->meta().shape.n_layers; ++layer) {
    EXPECT_EQ((*parsed)->layer_k(layer) - (*parsed)->bytes().data(),
              record->layer_k(layer) - record->bytes().data());
  }
}

INSTANTIATE_TEST_SUITE_P(V1, GoldenRecord, ::testing::ValuesIn(golden_files()),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::erase_if(name,
                                         [](char c) { return c == '-' || c == '.' || c == '_'; });
                           return name;
                         });

}  // namespace
}  // namespace inferscale::testing
