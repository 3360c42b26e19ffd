#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "inferscale/kv_record.h"
#include "inferscale/model_spec.h"
#include "inferscale/status.h"

namespace inferscale {

/// How libllama lays out the state of one sequence in memory. The layout is not a stable ABI and
/// the buffer carries no version, so the engine finds out which form fits when it starts
/// (self_test.h). This file and its source hold everything that the project knows about the layout.
///
///     u32 magic, i32 sequence id
///     u32 streams (1: unified cache), u32 cells; nothing follows when there are no cells
///     per cell: i32 position, u32 number of sequence ids (1), i32 sequence id
///     u32 values transposed (0: flash attention), u32 layers
///     [u32 key rotation, u32 value rotation (0: cache is not quantised)]   only in
///     kWithRotationWords keys, then values, layer by layer: i32 ggml type, u64 bytes of a row,
///     cells x row
///
/// Rows stand in the order of the physical cells, not of positions. Keys are rotated.
enum class StateForm : std::uint8_t {
  kPlain = 0,              ///< libllama 0.4 and 0.5 (sequence state versions 2 and 3)
  kWithRotationWords = 1,  ///< libllama 0.7 (version 4)
};
[[nodiscard]] const char* state_form_name(StateForm form);

/// What a state must look like. Layers are alike in every supported model.
struct StateSpec {
  StateForm form = StateForm::kPlain;
  KvShape shape;
  KvCodec dtype = KvCodec::kF16;
};

/// Bytes of a state of `cells` cells, or nothing when that does not fit in a size_t.
[[nodiscard]] std::optional<std::size_t> state_bytes(const StateSpec& spec, std::size_t cells);

/// A checked look at a state. Borrows the bytes it was made from.
struct StateView {
  std::int32_t sequence = 0;
  std::vector<std::int32_t> positions;  ///< [cells], of each row
  ConstCacheLayout rows;
};

/// Reads a state that may be anything: never outside `bytes`, no allocation larger than a few times
/// its size. Errors: kDataLoss that names the field: other magic, sizes, types, layers or streams
/// than `spec` asks for, negative positions, a buffer that is too short or too long.
[[nodiscard]] Result<StateView> parse_state(std::span<const std::byte> bytes,
                                            const StateSpec& spec);

/// Whether two states hold the same cells in the same order: positions and rows, not the sequence's
/// id.
[[nodiscard]] bool same_cells(const StateView& a, const StateView& b);

/// A state that is built here: sizes by formula, rows to be filled in place. Keeps its memory
/// between uses, since first touches of fresh pages would cost more than filling them.
class StateBuffer {
 public:
  /// Makes room for one cell per position and writes all that is not a row. Rows keep whatever was
  /// in memory. Errors: kInvalidArgument (no positions, a negative one, shape), kResourceExhausted
  /// (memory).
  [[nodiscard]] Status prepare(const StateSpec& spec, std::span<const std::int32_t> positions);
  /// Takes `size` bytes without giving them content, e.g. for libllama to write to. Errors:
  /// kResourceExhausted.
  [[nodiscard]] Status resize(std::size_t size);
  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  /// Where the rows are; row r belongs to positions[r] of `prepare`. Valid until the next `prepare`
  /// or `resize`.
  [[nodiscard]] const CacheLayout& rows() const { return rows_; }

 private:
  void write_cells(std::span<const std::int32_t> positions, std::size_t& offset);
  void write_layers(const StateSpec& spec, std::size_t cells, std::size_t& offset);

  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  CacheLayout rows_;
};

}  // namespace inferscale
