#include <algorithm>
#include <cstring>

#include "kernels/kv_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_cells_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements are moved as bits. A matrix's rows are `pitch` bytes apart, its columns contiguous.
template <typename T>
HWY_INLINE void copy_element(const std::byte* from, std::byte* to) {
  std::memcpy(to, from, sizeof(T));
}

#if HWY_TARGET != HWY_SCALAR
template <class D>
HWY_INLINE hn::Vec<D> load_bits(D d, const std::byte* from) {
  const hn::Repartition<std::uint8_t, D> du8;
  return hn::BitCast(d, hn::LoadU(du8, reinterpret_cast<const std::uint8_t*>(from)));
}

template <class D>
HWY_INLINE void store_bits(D /* tag */, hn::Vec<D> value, std::byte* to) {
  const hn::Repartition<std::uint8_t, D> du8;
  hn::StoreU(hn::BitCast(du8, value), du8, reinterpret_cast<std::uint8_t*>(to));
}

// Four rows of four columns each, from pairs of interleaved rows of 2-byte elements.
template <class V>
HWY_INLINE void store_columns(V rows01, V rows23, V rows45, V rows67, std::byte* to,
                              std::size_t to_pitch) {
  const hn::FixedTag<std::uint32_t, 4> d32;
  const hn::FixedTag<std::uint64_t, 2> d64;
  const auto join = [&](auto low, auto high, std::byte* at) {
    const auto l = hn::BitCast(d64, low);
    const auto h = hn::BitCast(d64, high);
    store_bits(d64, hn::InterleaveLower(d64, l, h), at);
    store_bits(d64, hn::InterleaveUpper(d64, l, h), at + to_pitch);
  };
  join(hn::InterleaveLower(d32, rows01, rows23), hn::InterleaveLower(d32, rows45, rows67), to);
  join(hn::InterleaveUpper(d32, rows01, rows23), hn::InterleaveUpper(d32, rows45, rows67),
       to + 2 * to_pitch);
}

// 8 x 8 elements of 2 bytes: columns become rows, in three rounds of interleaving.
HWY_INLINE void transpose_tile(std::uint16_t /* element */, const std::byte* from,
                               std::size_t from_pitch, std::byte* to, std::size_t to_pitch) {
  const hn::FixedTag<std::uint16_t, 8> d16;
  const hn::FixedTag<std::uint32_t, 4> d32;
  const auto row = [&](std::size_t i) { return load_bits(d16, from + i * from_pitch); };
  const auto lower = [&](std::size_t i) {
    return hn::BitCast(d32, hn::InterleaveLower(d16, row(i), row(i + 1)));
  };
  const auto upper = [&](std::size_t i) {
    return hn::BitCast(d32, hn::InterleaveUpper(d16, row(i), row(i + 1)));
  };
  store_columns(lower(0), lower(2), lower(4), lower(6), to, to_pitch);
  store_columns(upper(0), upper(2), upper(4), upper(6), to + 4 * to_pitch, to_pitch);
}

// 4 x 4 elements of 4 bytes.
HWY_INLINE void transpose_tile(std::uint32_t /* element */, const std::byte* from,
                               std::size_t from_pitch, std::byte* to, std::size_t to_pitch) {
  const hn::FixedTag<std::uint32_t, 4> d32;
  const hn::FixedTag<std::uint64_t, 2> d64;
  const auto r0 = load_bits(d32, from);
  const auto r1 = load_bits(d32, from + from_pitch);
  const auto r2 = load_bits(d32, from + 2 * from_pitch);
  const auto r3 = load_bits(d32, from + 3 * from_pitch);
  const auto a = hn::BitCast(d64, hn::InterleaveLower(d32, r0, r1));
  const auto b = hn::BitCast(d64, hn::InterleaveUpper(d32, r0, r1));
  const auto c = hn::BitCast(d64, hn::InterleaveLower(d32, r2, r3));
  const auto e = hn::BitCast(d64, hn::InterleaveUpper(d32, r2, r3));
  store_bits(d64, hn::InterleaveLower(d64, a, c), to);
  store_bits(d64, hn::InterleaveUpper(d64, a, c), to + to_pitch);
  store_bits(d64, hn::InterleaveLower(d64, b, e), to + 2 * to_pitch);
  store_bits(d64, hn::InterleaveUpper(d64, b, e), to + 3 * to_pitch);
}
#endif

// Stores that miss the caches wait for one another, so their lines are asked for ahead.
HWY_INLINE void prefetch_rows(const std::byte* to, std::size_t to_pitch, std::size_t count,
                              std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t at = 0; at < bytes; at += kLine) {
      __builtin_prefetch(to + i * to_pitch + at, 1);
    }
  }
}

// `from` [rows][columns] becomes `to` [columns][rows]. Rows of `to` are written in runs, so that
// each of its lines is touched once.
template <typename T>
HWY_INLINE void transpose(const std::byte* from, std::size_t from_pitch, std::size_t rows,
                          std::size_t columns, std::byte* to, std::size_t to_pitch) {
  std::size_t column = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr std::size_t kTile = 16 / sizeof(T);
  for (; column + kTile <= columns; column += kTile) {
    const std::size_t ahead = column + kTile;
    if (ahead < columns) {
      prefetch_rows(to + ahead * to_pitch, to_pitch, std::min(kTile, columns - ahead),
                    rows * sizeof(T));
    }
    std::size_t row = 0;
    for (; row + kTile <= rows; row += kTile) {
      transpose_tile(T(), from + row * from_pitch + column * sizeof(T), from_pitch,
                     to + column * to_pitch + row * sizeof(T), to_pitch);
    }
    for (; row < rows; ++row) {
      for (std::size_t i = column; i < column + kTile; ++i) {
        copy_element<T>(from + row * from_pitch + i * sizeof(T),
                        to + i * to_pitch + row * sizeof(T));
      }
    }
  }
#endif
  for (; column < columns; ++column) {
    for (std::size_t row = 0; row < rows; ++row) {
      copy_element<T>(from + row * from_pitch + column * sizeof(T),
                      to + column * to_pitch + row * sizeof(T));
    }
  }
}

// How many tokens from `first` on lie next to one another.
HWY_INLINE std::size_t run_length(const std::size_t* offsets, std::size_t first, std::size_t end,
                                  std::size_t element_bytes) {
  std::size_t t = first + 1;
  while (t < end && offsets[t] == offsets[t - 1] + element_bytes) {
    ++t;
  }
  return t - first;
}

template <typename T>
void scatter_of(const std::byte* packed, std::size_t n_tokens, std::size_t head_dim,
                const CellsView<std::byte>& cells) {
  const std::size_t pitch = head_dim * sizeof(T);
  for (std::size_t t = 0; t < n_tokens;) {
    const std::size_t run = run_length(cells.offsets, t, n_tokens, sizeof(T));
    transpose<T>(packed + t * pitch, pitch, run, head_dim, cells.base + cells.offsets[t],
                 cells.element_stride);
    t += run;
  }
}

template <typename T>
void gather_of(const CellsView<const std::byte>& cells, std::size_t n_tokens, std::size_t head_dim,
               std::byte* packed) {
  const std::size_t pitch = head_dim * sizeof(T);
  for (std::size_t t = 0; t < n_tokens;) {
    const std::size_t run = run_length(cells.offsets, t, n_tokens, sizeof(T));
    transpose<T>(cells.base + cells.offsets[t], cells.element_stride, head_dim, run,
                 packed + t * pitch, pitch);
    t += run;
  }
}

void scatter_target(const std::byte* packed, std::size_t n_tokens, std::size_t head_dim,
                    std::size_t element_bytes, const CellsView<std::byte>& cells) {
  if (element_bytes == 2) {
    scatter_of<std::uint16_t>(packed, n_tokens, head_dim, cells);
  } else {
    scatter_of<std::uint32_t>(packed, n_tokens, head_dim, cells);
  }
}

void gather_target(const CellsView<const std::byte>& cells, std::size_t n_tokens,
                   std::size_t head_dim, std::size_t element_bytes, std::byte* packed) {
  if (element_bytes == 2) {
    gather_of<std::uint16_t>(cells, n_tokens, head_dim, packed);
  } else {
    gather_of<std::uint32_t>(cells, n_tokens, head_dim, packed);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace inferscale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inferscale::kernels {
namespace {

HWY_EXPORT(scatter_target);
HWY_EXPORT(gather_target);

}  // namespace

void scatter_cells(const std::byte* packed, std::size_t n_tokens, std::size_t head_dim,
                   std::size_t element_bytes, const CellsView<std::byte>& cells) {
  HWY_DYNAMIC_DISPATCH(scatter_target)(packed, n_tokens, head_dim, element_bytes, cells);
}

void gather_cells(const CellsView<const std::byte>& cells, std::size_t n_tokens,
                  std::size_t head_dim, std::size_t element_bytes, std::byte* packed) {
  HWY_DYNAMIC_DISPATCH(gather_target)(cells, n_tokens, head_dim, element_bytes, packed);
}

}  // namespace inferscale::kernels
#endif  // HWY_ONCE
