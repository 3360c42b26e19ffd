// The layout of libllama's sequence states, both forms, without libllama: what is built is parsed
// again, and nothing that a hostile buffer says is believed.

#include "engine/llama/state_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace inferscale {
namespace {

struct Case {
  StateForm form;
  KvCodec dtype;
};

StateSpec spec_of(const Case& c) { return {c.form, {3, 2, 4, 6}, c.dtype}; }

std::vector<std::byte> build(const StateSpec& spec, const std::vector<std::int32_t>& positions) {
  StateBuffer buffer;
  EXPECT_TRUE(buffer.prepare(spec, positions).ok());
  for (std::uint32_t layer = 0; layer < spec.shape.n_layers; ++layer) {
    const CacheLayout& rows = buffer.rows();
    std::memset(rows.k[layer], static_cast<int>(1 + layer), rows.n_rows * rows.k_strides.row);
    std::memset(rows.v[layer], static_cast<int>(101 + layer), rows.n_rows * rows.v_strides.row);
  }
  return {buffer.bytes().begin(), buffer.bytes().end()};
}

void put_u32(std::vector<std::byte>& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

class StateBufferTest : public ::testing::TestWithParam<Case> {};

TEST_P(StateBufferTest, ParsesWhatItBuilds) {
  const StateSpec spec = spec_of(GetParam());
  const std::vector<std::int32_t> positions = {7, 3, 4, 900};
  const std::vector<std::byte> bytes = build(spec, positions);
  ASSERT_EQ(bytes.size(), state_bytes(spec, positions.size()));
  const Result<StateView> view = parse_state(bytes, spec);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->positions, positions);
  EXPECT_EQ(view->rows.n_rows, 4U);
  EXPECT_EQ(view->rows.k_strides.row, 8 * codec_element_bytes(spec.dtype));
  EXPECT_EQ(view->rows.v_strides.head, 6 * codec_element_bytes(spec.dtype));
  ASSERT_EQ(view->rows.k.size(), 3U);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    const std::size_t last = 4 * view->rows.k_strides.row - 1;
    EXPECT_EQ(view->rows.k[layer][0], std::byte(1 + layer));
    EXPECT_EQ(view->rows.k[layer][last], std::byte(1 + layer));
    EXPECT_EQ(view->rows.v[layer][4 * view->rows.v_strides.row - 1], std::byte(101 + layer));
  }
}

TEST_P(StateBufferTest, SizesAreTheOnesMeasured) {
  // 8+8 envelope and streams, 12 a cell, 8 or 16 of header, 12 a layer and half, and the rows.
  const StateSpec spec = spec_of(GetParam());
  const std::size_t header = spec.form == StateForm::kPlain ? 8 : 16;
  const std::size_t row = (8 + 12) * codec_element_bytes(spec.dtype);
  EXPECT_EQ(state_bytes(spec, 5), 16 + 5 * 12 + header + 3 * (24 + 5 * row));
  EXPECT_EQ(state_bytes(spec, 0), 16U);
  EXPECT_FALSE(state_bytes(spec, SIZE_MAX / 4).has_value());
}

TEST_P(StateBufferTest, EveryTruncationAndEveryExtensionIsRefused) {
  const StateSpec spec = spec_of(GetParam());
  const std::vector<std::byte> bytes = build(spec, {1, 2});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // A copy of the exact size, so that a sanitizer sees a read behind it.
    const std::vector<std::byte> part(bytes.begin(),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const Result<StateView> view = parse_state(part, spec);
    ASSERT_FALSE(view.ok()) << size;
    ASSERT_EQ(view.status().code(), StatusCode::kDataLoss);
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(parse_state(longer, spec).status().code(), StatusCode::kDataLoss);
}

TEST_P(StateBufferTest, EveryHeaderFieldIsChecked) {
  const StateSpec spec = spec_of(GetParam());
  const std::vector<std::byte> good = build(spec, {1, 2});
  // magic, streams, cells, sequence ids of cell 0, transposed, layers, type of layer 0.
  const std::size_t data = 16 + 2 * 12;
  const std::size_t layer0 = data + (spec.form == StateForm::kPlain ? 8 : 16);
  for (const std::size_t at : {std::size_t{0}, std::size_t{8}, std::size_t{12}, std::size_t{20},
                               data, data + 4, layer0, layer0 + 4}) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x01};
    EXPECT_FALSE(parse_state(bad, spec).ok()) << "byte " << at;
  }
  if (spec.form == StateForm::kWithRotationWords) {
    std::vector<std::byte> rotated = good;
    put_u32(rotated, data + 8, 64);
    EXPECT_FALSE(parse_state(rotated, spec).ok());
  }
}

TEST_P(StateBufferTest, HostileCountsAreRefusedWithoutAllocating) {
  const StateSpec spec = spec_of(GetParam());
  for (const std::uint32_t cells : {3U, 1000U, 0x7fffffffU, 0xffffffffU}) {
    std::vector<std::byte> bytes = build(spec, {1, 2});
    put_u32(bytes, 12, cells);
    EXPECT_EQ(parse_state(bytes, spec).status().code(), StatusCode::kDataLoss) << cells;
  }
  std::vector<std::byte> negative = build(spec, {1, 2});
  put_u32(negative, 16, 0xffffffffU);
  EXPECT_EQ(parse_state(negative, spec).status().code(), StatusCode::kDataLoss);
}

TEST_P(StateBufferTest, AnotherFormOrTypeOrShapeDoesNotFit) {
  const StateSpec spec = spec_of(GetParam());
  const std::vector<std::byte> bytes = build(spec, {5, 6, 7});
  StateSpec other = spec;
  other.form = spec.form == StateForm::kPlain ? StateForm::kWithRotationWords : StateForm::kPlain;
  EXPECT_FALSE(parse_state(bytes, other).ok());
  other = spec;
  other.dtype = spec.dtype == KvCodec::kF16 ? KvCodec::kF32 : KvCodec::kF16;
  EXPECT_FALSE(parse_state(bytes, other).ok());
  other = spec;
  other.shape.n_layers = 2;
  EXPECT_FALSE(parse_state(bytes, other).ok());
  other = spec;
  other.shape.n_kv_heads = 1;
  EXPECT_FALSE(parse_state(bytes, other).ok());
}

TEST_P(StateBufferTest, AnEmptySequenceHasNoRows) {
  const StateSpec spec = spec_of(GetParam());
  std::vector<std::byte> bytes = build(spec, {1});
  put_u32(bytes, 12, 0);
  bytes.resize(16);
  const Result<StateView> view = parse_state(bytes, spec);
  ASSERT_TRUE(view.ok());
  EXPECT_TRUE(view->positions.empty());
  EXPECT_EQ(view->rows.n_rows, 0U);
}

TEST_P(StateBufferTest, SameCellsLooksAtPositionsAndRowsNotAtTheSequence) {
  const StateSpec spec = spec_of(GetParam());
  const std::vector<std::byte> a = build(spec, {4, 5});
  std::vector<std::byte> b = a;
  put_u32(b, 4, 17);   // the sequence's id
  put_u32(b, 24, 17);  // a cell's sequence id
  EXPECT_TRUE(same_cells(*parse_state(a, spec), *parse_state(b, spec)));
  put_u32(b, 16, 9);
  EXPECT_FALSE(same_cells(*parse_state(a, spec), *parse_state(b, spec)));
  b = a;
  b.back() ^= std::byte{1};
  EXPECT_FALSE(same_cells(*parse_state(a, spec), *parse_state(b, spec)));
}

TEST_P(StateBufferTest, RandomDamageNeverReadsOutside) {
  const StateSpec spec = spec_of(GetParam());
  const std::vector<std::byte> good = build(spec, {1, 2, 3});
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = good;
    for (std::uint32_t flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % std::min<std::size_t>(bytes.size(), 96)] = std::byte(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    const Result<StateView> view = parse_state(bytes, spec);
    if (view.ok() && view->rows.n_rows > 0) {
      const std::byte* end = bytes.data() + bytes.size();
      ASSERT_LE(view->rows.v.back() + view->rows.n_rows * view->rows.v_strides.row, end);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, StateBufferTest,
                         ::testing::Values(Case{StateForm::kPlain, KvCodec::kF16},
                                           Case{StateForm::kPlain, KvCodec::kF32},
                                           Case{StateForm::kWithRotationWords, KvCodec::kF16},
                                           Case{StateForm::kWithRotationWords, KvCodec::kF32}));

TEST(StateBuffer, RefusesWhatCannotBeBuilt) {
  StateBuffer buffer;
  const StateSpec spec = spec_of({StateForm::kPlain, KvCodec::kF16});
  EXPECT_EQ(buffer.prepare(spec, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(buffer.prepare(spec, std::vector<std::int32_t>{1, -1}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      buffer.prepare({StateForm::kPlain, {0, 1, 2, 2}, KvCodec::kF16}, std::vector<std::int32_t>{1})
          .code(),
      StatusCode::kInvalidArgument);
}

TEST(StateBuffer, IsReusedForSmallerAndLargerStates) {
  const StateSpec spec = spec_of({StateForm::kPlain, KvCodec::kF16});
  StateBuffer buffer;
  for (const std::int32_t cells : {4, 2, 9}) {
    std::vector<std::int32_t> positions;
    for (std::int32_t i = 0; i < cells; ++i) {
      positions.push_back(10 + i);
    }
    ASSERT_TRUE(buffer.prepare(spec, positions).ok());
    const Result<StateView> view = parse_state(buffer.bytes(), spec);
    ASSERT_TRUE(view.ok()) << view.status().to_string();
    EXPECT_EQ(view->positions, positions);
  }
}

}  // namespace
}  // namespace inferscale
