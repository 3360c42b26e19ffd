#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "engine/llama/state_buffer.h"

/// Any bytes may come back from an engine as a sequence's state: they are refused, or every row
/// that the view names lies inside them, and the builder would have made a state of that size.

namespace {

using inferscale::KvCodec;
using inferscale::StateForm;
using inferscale::StateSpec;
using inferscale::StateView;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

/// What the first byte asks for. Small, so that a valid state is not out of reach.
StateSpec spec_of(std::uint8_t choice) {
  StateSpec spec;
  spec.form = (choice & 1) != 0 ? StateForm::kWithRotationWords : StateForm::kPlain;
  spec.dtype = (choice & 2) != 0 ? KvCodec::kF32 : KvCodec::kF16;
  spec.shape = {1U + (choice >> 2) % 3, 1U + (choice >> 4) % 2, 2, 1U + (choice >> 5)};
  return spec;
}

void check_rows(const std::vector<const std::byte*>& layers, std::size_t bytes,
                std::span<const std::byte> all, std::uint32_t n_layers) {
  require(layers.size() == n_layers);
  for (const std::byte* layer : layers) {
    require(layer >= all.data() && bytes <= all.size());
    require(layer + bytes <= all.data() + all.size());
    // Read them all, for the address sanitizer.
    volatile std::uint8_t sum = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      sum = static_cast<std::uint8_t>(sum + std::to_integer<std::uint8_t>(layer[i]));
    }
  }
}

void check(std::span<const std::byte> bytes, const StateSpec& spec) {
  const auto parsed = inferscale::parse_state(bytes, spec);
  if (!parsed.ok()) {
    require(parsed.status().code() == inferscale::StatusCode::kDataLoss);
    return;
  }
  const StateView& view = *parsed;
  require(inferscale::state_bytes(spec, view.positions.size()) == bytes.size());
  require(view.rows.n_rows == view.positions.size());
  require(inferscale::same_cells(view, view));
  if (view.positions.empty()) {
    return;
  }
  const std::size_t rows = view.rows.n_rows;
  check_rows(view.rows.k, rows * view.rows.k_strides.row, bytes, spec.shape.n_layers);
  check_rows(view.rows.v, rows * view.rows.v_strides.row, bytes, spec.shape.n_layers);
  inferscale::StateBuffer again;
  require(again.prepare(spec, view.positions).ok());
  require(again.bytes().size() == bytes.size());
  const auto rebuilt = inferscale::parse_state(again.bytes(), spec);
  require(rebuilt.ok() && rebuilt->positions == view.positions);
}

/// Without this few mutations would get past the constants at the start.
std::vector<std::byte> with_envelope(std::span<const std::byte> bytes) {
  std::vector<std::byte> fixed(bytes.begin(), bytes.end());
  if (fixed.empty()) {
    return fixed;
  }
  const std::uint32_t words[] = {0xaf143cd8U, 0, 1};
  if (fixed.empty()) {
    return fixed;
  }
  std::memcpy(fixed.data(), words, std::min(fixed.size(), sizeof(words)));
  return fixed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const StateSpec spec = spec_of(data[0]);
  // Copies of the exact size, so that a read behind the end is seen.
  const std::span<const std::byte> input = std::as_bytes(std::span(data + 1, size - 1));
  check(std::vector<std::byte>(input.begin(), input.end()), spec);
  check(with_envelope(input), spec);
  return 0;
}
