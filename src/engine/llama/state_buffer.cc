#include "engine/llama/state_buffer.h"

#include <fmt/core.h>

#include <cstring>
#include <limits>
#include <new>
#include <string>

namespace inferscale {
namespace {

// libllama's `io_magic` (llama-context.cpp), written since May 2026.
constexpr std::uint32_t kMagic = 0xaf143cd8;
constexpr std::size_t kEnvelopeBytes = 8;
constexpr std::size_t kStreamBytes = 8;
constexpr std::size_t kCellBytes = 12;
constexpr std::size_t kLayerHeaderBytes = 12;
// ggml type ids, part of the GGUF format and thus stable; not included from ggml.h so that parsing
// needs no libllama.
constexpr std::int32_t kGgmlF32 = 0;
constexpr std::int32_t kGgmlF16 = 1;

std::int32_t ggml_type_of(KvCodec codec) { return codec == KvCodec::kF32 ? kGgmlF32 : kGgmlF16; }

std::size_t data_header_bytes(StateForm form) {
  return form == StateForm::kWithRotationWords ? 16 : 8;
}

std::size_t row_bytes(std::size_t elements, KvCodec dtype) {
  return elements * codec_element_bytes(dtype);
}

/// a += b * c, or false when it does not fit.
bool add_product(std::size_t& a, std::size_t b, std::size_t c) {
  std::size_t product = 0;
  return !__builtin_mul_overflow(b, c, &product) && !__builtin_add_overflow(a, product, &a);
}

/// Reads forward through a buffer; a read that does not fit fails and leaves everything as it was.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  [[nodiscard]] bool read(T& value) {
    if (remaining() < sizeof(T)) {
      return false;
    }
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return true;
  }
  [[nodiscard]] const std::byte* skip(std::size_t size) {
    if (remaining() < size) {
      return nullptr;
    }
    const std::byte* at = bytes_.data() + offset_;
    offset_ += size;
    return at;
  }
  [[nodiscard]] std::size_t remaining() const { return bytes_.size() - offset_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
};

Status bad(std::string what) { return data_loss("sequence state: " + std::move(what)); }

Status too_short(const char* field) { return bad(fmt::format("the buffer ends inside {}", field)); }

template <typename T>
Status expect(Reader& reader, T expected, const char* field) {
  T value{};
  if (!reader.read(value)) {
    return too_short(field);
  }
  if (value != expected) {
    return bad(fmt::format("{} is {}, expected {}", field, value, expected));
  }
  return Status();
}

Status read_cells(Reader& reader, std::uint32_t cells, std::vector<std::int32_t>& positions) {
  // Checked before the allocation, so that a hostile count cannot ask for more than the buffer
  // holds.
  if (reader.remaining() / kCellBytes < cells) {
    return too_short("the cells");
  }
  positions.resize(cells);
  for (std::int32_t& position : positions) {
    std::int32_t sequence = 0;
    if (!reader.read(position)) {
      return too_short("a position");
    }
    if (position < 0) {
      return bad(fmt::format("position {} of a cell is negative", position));
    }
    INFERSCALE_RETURN_IF_ERROR(expect<std::uint32_t>(reader, 1, "sequence ids of a cell"));
    if (!reader.read(sequence)) {
      return too_short("a cell's sequence id");
    }
  }
  return Status();
}

Status read_layers(Reader& reader, const StateSpec& spec, std::size_t cells, std::size_t elements,
                   const char* field, std::vector<const std::byte*>& pointers) {
  const std::size_t row = row_bytes(elements, spec.dtype);
  for (std::uint32_t layer = 0; layer < spec.shape.n_layers; ++layer) {
    INFERSCALE_RETURN_IF_ERROR(
        expect<std::int32_t>(reader, ggml_type_of(spec.dtype), "element type"));
    INFERSCALE_RETURN_IF_ERROR(expect<std::uint64_t>(reader, row, "bytes of a row"));
    std::size_t size = 0;
    const std::byte* at = add_product(size, cells, row) ? reader.skip(size) : nullptr;
    if (at == nullptr) {
      return too_short(field);
    }
    pointers.push_back(at);
  }
  return Status();
}

template <typename Byte>
void set_strides(const StateSpec& spec, std::size_t cells, BasicCacheLayout<Byte>& rows) {
  const std::size_t element = codec_element_bytes(spec.dtype);
  rows.dtype = spec.dtype;
  rows.shape = spec.shape;
  rows.k_strides.row = spec.shape.k_elements() * element;
  rows.k_strides.head = spec.shape.head_dim_k * element;
  rows.v_strides.row = spec.shape.v_elements() * element;
  rows.v_strides.head = spec.shape.head_dim_v * element;
  rows.n_rows = cells;
}

bool same_rows(const ConstCacheLayout& a, const ConstCacheLayout& b) {
  for (std::size_t layer = 0; layer < a.k.size(); ++layer) {
    if (std::memcmp(a.k[layer], b.k[layer], a.n_rows * a.k_strides.row) != 0 ||
        std::memcmp(a.v[layer], b.v[layer], a.n_rows * a.v_strides.row) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

const char* state_form_name(StateForm form) {
  return form == StateForm::kPlain ? "plain" : "with rotation words";
}

std::optional<std::size_t> state_bytes(const StateSpec& spec, std::size_t cells) {
  std::size_t size = kEnvelopeBytes + kStreamBytes;
  if (cells == 0) {
    return size;
  }
  const std::size_t layers = spec.shape.n_layers;
  size += data_header_bytes(spec.form) + 2 * layers * kLayerHeaderBytes;
  const std::size_t row = row_bytes(spec.shape.k_elements(), spec.dtype) +
                          row_bytes(spec.shape.v_elements(), spec.dtype);
  std::size_t per_cell = kCellBytes;
  if (!add_product(per_cell, layers, row) || !add_product(size, cells, per_cell)) {
    return std::nullopt;
  }
  return size;
}

Result<StateView> parse_state(std::span<const std::byte> bytes, const StateSpec& spec) {
  INFERSCALE_RETURN_IF_ERROR(spec.shape.validate());
  Reader reader(bytes);
  StateView view;
  std::uint32_t cells = 0;
  INFERSCALE_RETURN_IF_ERROR(expect<std::uint32_t>(reader, kMagic, "magic"));
  if (!reader.read(view.sequence)) {
    return too_short("the sequence id");
  }
  INFERSCALE_RETURN_IF_ERROR(expect<std::uint32_t>(reader, 1, "number of streams"));
  if (!reader.read(cells)) {
    return too_short("the number of cells");
  }
  set_strides(spec, cells, view.rows);
  if (cells != 0) {
    INFERSCALE_RETURN_IF_ERROR(read_cells(reader, cells, view.positions));
    INFERSCALE_RETURN_IF_ERROR(expect<std::uint32_t>(reader, 0, "transposed values"));
    INFERSCALE_RETURN_IF_ERROR(
        expect<std::uint32_t>(reader, spec.shape.n_layers, "number of layers"));
    if (spec.form == StateForm::kWithRotationWords) {
      INFERSCALE_RETURN_IF_ERROR(expect<std::uint32_t>(reader, 0, "key rotation"));
      INFERSCALE_RETURN_IF_ERROR(expect<std::uint32_t>(reader, 0, "value rotation"));
    }
    INFERSCALE_RETURN_IF_ERROR(
        read_layers(reader, spec, cells, spec.shape.k_elements(), "keys", view.rows.k));
    INFERSCALE_RETURN_IF_ERROR(
        read_layers(reader, spec, cells, spec.shape.v_elements(), "values", view.rows.v));
  }
  if (reader.remaining() != 0) {
    return bad(fmt::format("{} bytes are left over", reader.remaining()));
  }
  return view;
}

bool same_cells(const StateView& a, const StateView& b) {
  return a.positions == b.positions && a.rows.dtype == b.rows.dtype &&
         a.rows.shape == b.rows.shape && same_rows(a.rows, b.rows);
}

Status StateBuffer::resize(std::size_t size) {
  if (size > capacity_) {
    data_.reset();
    capacity_ = 0;
    size_ = 0;
    data_.reset(new (std::nothrow) std::byte[size]);
    if (data_ == nullptr) {
      return resource_exhausted(fmt::format("no memory for a sequence state of {} bytes", size));
    }
    capacity_ = size;
  }
  size_ = size;
  return Status();
}

namespace {

template <typename T>
void put(std::byte* data, std::size_t& offset, T value) {
  std::memcpy(data + offset, &value, sizeof(T));
  offset += sizeof(T);
}

}  // namespace

void StateBuffer::write_cells(std::span<const std::int32_t> positions, std::size_t& offset) {
  put<std::uint32_t>(data_.get(), offset, kMagic);
  put<std::int32_t>(data_.get(), offset, 0);
  put<std::uint32_t>(data_.get(), offset, 1);
  put(data_.get(), offset, static_cast<std::uint32_t>(positions.size()));
  for (const std::int32_t position : positions) {
    put(data_.get(), offset, position);
    put<std::uint32_t>(data_.get(), offset, 1);
    put<std::int32_t>(data_.get(), offset, 0);
  }
}

void StateBuffer::write_layers(const StateSpec& spec, std::size_t cells, std::size_t& offset) {
  std::byte* data = data_.get();
  put<std::uint32_t>(data, offset, 0);
  put(data, offset, spec.shape.n_layers);
  if (spec.form == StateForm::kWithRotationWords) {
    put<std::uint64_t>(data, offset, 0);
  }
  rows_ = CacheLayout{};
  set_strides(spec, cells, rows_);
  const auto write = [&](std::size_t row, std::vector<std::byte*>& pointers) {
    for (std::uint32_t layer = 0; layer < spec.shape.n_layers; ++layer) {
      put(data, offset, ggml_type_of(spec.dtype));
      put<std::uint64_t>(data, offset, row);
      pointers.push_back(data + offset);
      offset += cells * row;
    }
  };
  write(rows_.k_strides.row, rows_.k);
  write(rows_.v_strides.row, rows_.v);
}

Status StateBuffer::prepare(const StateSpec& spec, std::span<const std::int32_t> positions) {
  INFERSCALE_RETURN_IF_ERROR(spec.shape.validate());
  if (positions.empty() || positions.size() > std::numeric_limits<std::uint32_t>::max()) {
    return invalid_argument(fmt::format("a state of {} cells cannot be built", positions.size()));
  }
  for (const std::int32_t position : positions) {
    if (position < 0) {
      return invalid_argument(fmt::format("position {} of a state is negative", position));
    }
  }
  const std::optional<std::size_t> size = state_bytes(spec, positions.size());
  if (!size) {
    return resource_exhausted(fmt::format("a state of {} cells is too large", positions.size()));
  }
  INFERSCALE_RETURN_IF_ERROR(resize(*size));
  std::size_t offset = 0;
  write_cells(positions, offset);
  write_layers(spec, positions.size(), offset);
  return Status();
}

}  // namespace inferscale
