#include "kernels/arguments.h"

#include <limits>
#include <utility>

namespace inferscale::kernels {
namespace {

std::string text(std::size_t value) { return std::to_string(value); }

// How K or V of a layer lies in the cache.
struct CellGrid {
  const char* name;  // "k" or "v"
  std::size_t n_rows;
  std::size_t n_heads;
  std::size_t head_bytes;
  std::size_t row_stride;
  std::size_t head_stride;
};

// (count - 1) * stride + size, or no value when that is not addressable.
bool extent(std::size_t count, std::size_t stride, std::size_t size, std::size_t* out) {
  std::size_t product = 0;
  return !__builtin_mul_overflow(count - 1, stride, &product) &&
         !__builtin_add_overflow(product, size, out) &&
         *out <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
}

// Heads lie within rows, or rows within heads; any other arrangement makes cells overlap.
Status check_grid(const CellGrid& grid) {
  const std::string name = grid.name;
  const bool one_head = grid.n_heads == 1;
  const bool one_row = grid.n_rows <= 1;
  if (!one_head && grid.head_stride < grid.head_bytes) {
    return invalid_argument("cache." + name + "_head_stride is " + text(grid.head_stride) +
                            " bytes; a head needs at least " + text(grid.head_bytes));
  }
  if (!one_row && grid.row_stride < grid.head_bytes) {
    return invalid_argument("cache." + name + "_row_stride is " + text(grid.row_stride) +
                            " bytes; a row needs at least " + text(grid.head_bytes));
  }
  const std::size_t rows = one_row ? 1 : grid.n_rows;
  std::size_t heads_extent = 0;
  std::size_t rows_extent = 0;
  std::size_t all = 0;
  if (!extent(grid.n_heads, one_head ? 0 : grid.head_stride, grid.head_bytes, &heads_extent) ||
      !extent(rows, one_row ? 0 : grid.row_stride, grid.head_bytes, &rows_extent) ||
      !extent(rows, one_row ? 0 : grid.row_stride, heads_extent, &all)) {
    return invalid_argument("cache." + name + "_row_stride " + text(grid.row_stride) + " and " +
                            name + "_head_stride " + text(grid.head_stride) + " with " +
                            text(grid.n_rows) + " rows reach beyond the address space");
  }
  const bool rows_hold_heads = one_row || grid.row_stride >= heads_extent;
  const bool heads_hold_rows = one_head || grid.head_stride >= rows_extent;
  if (!rows_hold_heads && !heads_hold_rows) {
    return invalid_argument("cache." + name + "_row_stride " + text(grid.row_stride) + " and " +
                            name + "_head_stride " + text(grid.head_stride) +
                            " make cells overlap: row stride at least " + text(heads_extent) +
                            " or head stride at least " + text(rows_extent) + " bytes");
  }
  return Status();
}

Status check_pointers(const char* name, const std::vector<const std::byte*>& layers,
                      std::uint32_t n_layers) {
  if (layers.size() != n_layers) {
    return invalid_argument(std::string("cache.") + name + " has " + text(layers.size()) +
                            " pointers; the shape has " + text(n_layers) + " layers");
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == nullptr) {
      return invalid_argument(std::string("cache.") + name + "[" + text(i) +
                              "] is null; every layer needs a pointer");
    }
  }
  return Status();
}

std::string shape_text(const KvShape& shape) {
  return text(shape.n_layers) + " layers x " + text(shape.n_kv_heads) + " kv heads x (" +
         text(shape.head_dim_k) + " K, " + text(shape.head_dim_v) + " V)";
}

}  // namespace

Status check_cache(const ConstCacheLayout& cache, const RopeTable& table) {
  const std::size_t element = codec_element_bytes(cache.dtype);
  if (element == 0) {
    return invalid_argument("cache.dtype is " + text(static_cast<std::size_t>(cache.dtype)) +
                            "; known are 1 (f16) and 2 (f32)");
  }
  INFERSCALE_RETURN_IF_ERROR(cache.shape.validate().with_context("cache.shape"));
  const KvShape& shape = cache.shape;
  INFERSCALE_RETURN_IF_ERROR(check_pointers("k", cache.k, shape.n_layers));
  INFERSCALE_RETURN_IF_ERROR(check_pointers("v", cache.v, shape.n_layers));
  INFERSCALE_RETURN_IF_ERROR(
      check_grid({"k", cache.n_rows, shape.n_kv_heads, shape.head_dim_k * element,
                  cache.k_row_stride, cache.k_head_stride}));
  INFERSCALE_RETURN_IF_ERROR(
      check_grid({"v", cache.n_rows, shape.n_kv_heads, shape.head_dim_v * element,
                  cache.v_row_stride, cache.v_head_stride}));
  if (table.spec().rotary_dim > shape.head_dim_k) {
    return invalid_argument("rotary_dim of the table is " + text(table.spec().rotary_dim) +
                            "; the cache's head_dim_k allows 0.." + text(shape.head_dim_k));
  }
  return Status();
}

Status check_record(const std::string& name, const RecordMeta& meta, const KvShape& cache_shape) {
  if (codec_element_bytes(meta.codec) == 0) {
    return invalid_argument(name + " has codec " + text(static_cast<std::size_t>(meta.codec)) +
                            "; known are 1 (f16) and 2 (f32)");
  }
  if (!(meta.shape == cache_shape)) {
    return invalid_argument(name + " has shape " + shape_text(meta.shape) + "; the cache has " +
                            shape_text(cache_shape));
  }
  return Status();
}

Status check_run(const std::string& name, const TokenRun& run, const RopeTable& table,
                 std::size_t n_rows) {
  const std::uint64_t end_position = std::uint64_t{run.first_position} + run.n_tokens;
  if (end_position > table.max_positions()) {
    return invalid_argument(name + " has positions " + text(run.first_position) + ".." +
                            text(end_position - 1) + "; the table covers 0.." +
                            text(table.max_positions() - 1));
  }
  if (run.rows.empty()) {
    if (run.first_row > n_rows || n_rows - run.first_row < run.n_tokens) {
      return invalid_argument(name + ".first_row is " + text(run.first_row) + " for " +
                              text(run.n_tokens) + " tokens; the cache has " + text(n_rows) +
                              " rows");
    }
    return Status();
  }
  if (run.rows.size() != run.n_tokens) {
    return invalid_argument(
        name + ".rows has " + text(run.rows.size()) +
        " entries; it must be empty or have one per token: " + text(run.n_tokens));
  }
  for (std::size_t t = 0; t < run.rows.size(); ++t) {
    if (run.rows[t] >= n_rows) {
      return invalid_argument(name + ".rows[" + text(t) + "] is " + text(run.rows[t]) +
                              "; the cache has " + text(n_rows) + " rows, counted from 0");
    }
  }
  return Status();
}

ConstCacheLayout as_const(const CacheLayout& cache) {
  ConstCacheLayout view;
  view.dtype = cache.dtype;
  view.shape = cache.shape;
  view.k.assign(cache.k.begin(), cache.k.end());
  view.v.assign(cache.v.begin(), cache.v.end());
  view.k_row_stride = cache.k_row_stride;
  view.k_head_stride = cache.k_head_stride;
  view.v_row_stride = cache.v_row_stride;
  view.v_head_stride = cache.v_head_stride;
  view.n_rows = cache.n_rows;
  return view;
}

}  // namespace inferscale::kernels
