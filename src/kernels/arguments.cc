#include "kernels/arguments.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace inferscale::kernels {
namespace {

std::string text(std::size_t value) { return std::to_string(value); }

// One dimension of the cells of a layer: cells i and i + 1 along it are `stride` bytes apart.
struct Dimension {
  const char* name;
  std::size_t count;
  std::size_t stride;
};

// (count - 1) * stride + size, or false when that is not addressable.
bool extent(const Dimension& along, std::size_t size, std::size_t* out) {
  std::size_t product = 0;
  return !__builtin_mul_overflow(along.count - 1, along.stride, &product) &&
         !__builtin_add_overflow(product, size, out) &&
         *out <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
}

// No two cells overlap when each dimension, from the smallest stride up, steps over all that lies
// within it. `name` is "k" or "v".
Status check_strides(const std::string& name, const CacheStrides& strides,
                     const ConstCacheLayout& cache, std::size_t head_dim) {
  const std::size_t element = codec_element_bytes(cache.dtype);
  const std::size_t in_block = cache.rows_per_block;
  Dimension dimensions[] = {
      {"element", head_dim, strides.element == 0 ? element : strides.element},
      {"head", cache.shape.n_kv_heads, strides.head},
      {"row", in_block == 0 ? cache.n_rows : std::min(in_block, cache.n_rows), strides.row},
      {"block", in_block == 0 ? 1 : cache.n_rows / in_block, strides.block}};
  std::stable_sort(std::begin(dimensions), std::end(dimensions),
                   [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  std::size_t within = element;
  for (const Dimension& along : dimensions) {
    if (along.count <= 1) {
      continue;  // a stride that is never stepped may be anything
    }
    const std::string field = "cache." + name + "_strides." + along.name;
    if (along.stride < within) {
      return invalid_argument(field + " is " + text(along.stride) +
                              " bytes, which makes cells overlap: at least " + text(within) +
                              " are needed beside the other strides");
    }
    if (!extent(along, within, &within)) {
      return invalid_argument(field + " is " + text(along.stride) + " bytes; " + text(along.count) +
                              " of them reach beyond the address space");
    }
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
  if (codec_element_bytes(cache.dtype) == 0 || codec_is_scaled(cache.dtype)) {
    return invalid_argument("cache.dtype is " + text(static_cast<std::size_t>(cache.dtype)) +
                            "; known are 1 (f16), 2 (f32) and 3 (bf16)");
  }
  INFERSCALE_RETURN_IF_ERROR(cache.shape.validate().with_context("cache.shape"));
  const KvShape& shape = cache.shape;
  INFERSCALE_RETURN_IF_ERROR(check_pointers("k", cache.k, shape.n_layers));
  INFERSCALE_RETURN_IF_ERROR(check_pointers("v", cache.v, shape.n_layers));
  if (cache.rows_per_block > 0 && cache.n_rows % cache.rows_per_block != 0) {
    return invalid_argument("cache.n_rows is " + text(cache.n_rows) +
                            "; it must be a multiple of rows_per_block, " +
                            text(cache.rows_per_block));
  }
  INFERSCALE_RETURN_IF_ERROR(check_strides("k", cache.k_strides, cache, shape.head_dim_k));
  INFERSCALE_RETURN_IF_ERROR(check_strides("v", cache.v_strides, cache, shape.head_dim_v));
  if (table.spec().rotary_dim > shape.head_dim_k) {
    return invalid_argument("rotary_dim of the table is " + text(table.spec().rotary_dim) +
                            "; the cache's head_dim_k allows 0.." + text(shape.head_dim_k));
  }
  const std::size_t biased = shape.n_layers * shape.k_elements();
  if (!table.key_bias().empty() && table.key_bias().size() != biased) {
    return invalid_argument("key_bias of the table has " + text(table.key_bias().size()) +
                            " elements; the cache's keys have " + text(biased));
  }
  return Status();
}

Status check_record(const std::string& name, const RecordMeta& meta, const KvShape& cache_shape) {
  if (!codec_is_known(meta.codec)) {
    return invalid_argument(
        name + " has codec " + text(static_cast<std::size_t>(meta.codec)) +
        "; known are 1 (f16), 2 (f32), 3 (bf16), 4 (q8), 5 (fp8_e4m3) and 6 (q4)");
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

Status check_layers(const LayerRange& layers, std::uint32_t n_layers) {
  if (layers.first >= n_layers || layers.count > n_layers - layers.first) {
    return invalid_argument("layers begin at " + text(layers.first) + " and are " +
                            text(layers.count) + "; the cache has " + text(n_layers) +
                            ", counted from 0");
  }
  return Status();
}

ConstCacheLayout as_const(const CacheLayout& cache) {
  ConstCacheLayout view;
  view.dtype = cache.dtype;
  view.shape = cache.shape;
  view.k.assign(cache.k.begin(), cache.k.end());
  view.v.assign(cache.v.begin(), cache.v.end());
  view.k_strides = cache.k_strides;
  view.v_strides = cache.v_strides;
  view.rows_per_block = cache.rows_per_block;
  view.n_rows = cache.n_rows;
  return view;
}

}  // namespace inferscale::kernels
