#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"
#include "bindings.h"
#include "convert.h"
#include "errors.h"
#include "record_store.h"

#ifdef INFERSCALE_WITH_CUDA
#include "kv/cuda/cuda_device.h"
#endif

namespace inferscale::python {
namespace {

constexpr std::uint64_t kMaxRow = std::numeric_limits<std::uint32_t>::max();

using Strides = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

template <typename Index>
std::vector<std::uint32_t> checked_rows(const char* field, const Index* from, std::size_t count) {
  std::vector<std::uint32_t> rows(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (from[i] < 0 || static_cast<std::uint64_t>(from[i]) > kMaxRow) {
      throw nb::value_error((std::string(field) + " must be in 0..4294967295").c_str());
    }
    rows[i] = static_cast<std::uint32_t>(from[i]);
  }
  return rows;
}

/// An int32 or int64 array of one dimension, in the memory of the host.
std::vector<std::uint32_t> to_rows(const char* field, nb::handle value) {
  using Wide = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using Narrow = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  Wide wide;
  if (nb::try_cast<Wide>(nb::borrow(value), wide, false)) {
    return checked_rows(field, wide.data(), wide.size());
  }
  Narrow narrow;
  if (nb::try_cast<Narrow>(nb::borrow(value), narrow, false)) {
    return checked_rows(field, narrow.data(), narrow.size());
  }
  if (PyList_Check(value.ptr())) {
    std::vector<std::uint32_t> rows;
    for (nb::handle item : nb::borrow<nb::list>(value)) {
      rows.push_back(static_cast<std::uint32_t>(to_number(field, item, kMaxRow)));
    }
    return rows;
  }
  throw nb::type_error(
      (std::string(field) + " must be a contiguous array of int32 or int64").c_str());
}

CacheStrides to_strides(const Strides& strides) {
  const auto [row, head, element, block] = strides;
  return {row, head, element, block};
}

std::vector<std::byte*> to_pointers(const std::vector<std::uintptr_t>& addresses) {
  std::vector<std::byte*> pointers;
  for (const std::uintptr_t address : addresses) {
    pointers.push_back(reinterpret_cast<std::byte*>(address));  // checked to be none of them null
  }
  return pointers;
}

void bind_cache(RankStore& store, const std::string& dtype, const std::vector<std::uintptr_t>& k,
                const std::vector<std::uintptr_t>& v, const Strides& k_strides,
                const Strides& v_strides, std::size_t rows_per_block, std::size_t n_rows,
                std::size_t max_tokens) {
  CacheLayout cache;
  cache.dtype = to_codec("dtype", dtype);
  cache.shape = store.shape();
  cache.k = to_pointers(k);
  cache.v = to_pointers(v);
  cache.k_strides = to_strides(k_strides);
  cache.v_strides = to_strides(v_strides);
  cache.rows_per_block = rows_per_block;
  cache.n_rows = n_rows;
  check(unlocked([&] { return store.bind_cache(cache, max_tokens); }));
}

std::vector<const PreparedLoad*> to_loads(nb::handle value) {
  std::vector<const PreparedLoad*> loads;
  if (nb::isinstance<PreparedLoad>(value)) {
    loads.push_back(nb::cast<const PreparedLoad*>(value));
    return loads;
  }
  for (const nb::object& item : to_items("loads", value)) {
    if (!nb::isinstance<PreparedLoad>(item)) {
      throw nb::type_error("loads must be of PreparedLoad");
    }
    loads.push_back(nb::cast<const PreparedLoad*>(item));
  }
  return loads;
}

void compose_paged(RankStore& store, nb::handle loads, nb::handle rows, std::uintptr_t stream) {
  const std::vector<const PreparedLoad*> prepared = to_loads(loads);
  const std::vector<std::uint32_t> where = to_rows("rows", rows);
  check(unlocked(
      [&] { return store.compose_paged(prepared, where, reinterpret_cast<void*>(stream)); }));
}

PendingCapture capture_paged(RankStore& store, nb::handle runs, nb::handle rows,
                             std::uintptr_t stream) {
  std::vector<CaptureItem> items;
  for (const nb::object& run : to_items("runs", runs)) {
    const std::vector<nb::object> parts = to_items("run", run);
    if (parts.size() != 3 || !PyDict_Check(parts[0].ptr())) {
      throw nb::value_error("a run is (meta, tokens, first_position)");
    }
    CaptureItem& item = items.emplace_back();
    item.meta = to_capture_meta(nb::borrow<nb::dict>(parts[0]));
    item.tokens = to_tokens("tokens", parts[1]);
    item.first_position =
        static_cast<std::uint32_t>(to_number("first_position", parts[2], kMaxRow));
  }
  const std::vector<std::uint32_t> where = to_rows("rows", rows);
  return take(unlocked([&] {
    return store.capture_paged(std::move(items), where, reinterpret_cast<void*>(stream));
  }));
}

nb::list finish_capture(RankStore& store, PendingCapture& pending) {
  const std::vector<RecordKey> keys = pending.keys();
  const std::vector<Status> stored =
      take(unlocked([&] { return store.finish(std::move(pending)); }));
  nb::list list;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].ok()) {
      list.append(keys[i].value.to_hex());
    } else {
      log_message(LogLevel::kWarning,
                  "record " + keys[i].value.to_hex() + " was not stored: " + stored[i].message());
      list.append(nb::none());
    }
  }
  return list;
}

nb::object slot_rows(nb::handle blocks, std::uint32_t block_size) {
  if (block_size == 0) {
    throw nb::value_error("block_size must be at least 1");
  }
  std::vector<std::int32_t> rows;
  for (const nb::object& item : to_items("blocks", blocks)) {
    const std::vector<nb::object> parts = to_items("blocks", item);
    if (parts.size() != 3) {
      throw nb::value_error("blocks is a list of (block_ids, first_token, n_tokens)");
    }
    const std::vector<std::uint32_t> ids = to_rows("block_ids", parts[0]);
    const std::uint64_t first = to_number("first_token", parts[1], kMaxRow);
    const std::uint64_t count = to_number("n_tokens", parts[2], kMaxRow);
    if (first + count > ids.size() * std::uint64_t{block_size}) {
      throw nb::value_error("block_ids are fewer than the tokens need");
    }
    for (std::uint64_t token = first; token < first + count; ++token) {
      const std::uint64_t row =
          std::uint64_t{ids[token / block_size]} * block_size + token % block_size;
      if (row > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
        throw nb::value_error("block_ids name rows beyond 2147483647");
      }
      rows.push_back(static_cast<std::int32_t>(row));
    }
  }
  return from_tokens(rows);
}

}  // namespace

DeviceFactory to_device(const std::string& name, int* index) {
  if (name == "plain") {
    return make_plain_device;
  }
  constexpr std::string_view kCuda = "cuda:";
  const char* const end = name.data() + name.size();
  const char* const number = name.data() + kCuda.size();
  *index = -1;
  if (!name.starts_with(kCuda) || std::from_chars(number, end, *index).ptr != end || *index < 0) {
    throw nb::value_error("device must be '', 'plain' or 'cuda:N'");
  }
#ifdef INFERSCALE_WITH_CUDA
  return make_cuda_device;
#else
  raise(unsupported("device '" + name + "': this build has no CUDA"));
#endif
}

void set_device(const std::string& name, RankStoreOptions* options) {
  if (!name.empty()) {
    options->device = to_device(name, &options->device_index);
  }
}

void bind_device(nb::module_& m, nb::class_<RankStore>& store) {
  nb::class_<PendingCapture>(m, "PendingCapture", "Records on their way from a device.")
      .def("ready", &PendingCapture::ready,
           "Whether RecordStore.finish_capture would not wait for the device.");
  store
      .def("bind_cache", &bind_cache, nb::arg("dtype"), nb::arg("k"), nb::arg("v"),
           nb::arg("k_strides"), nb::arg("v_strides"), nb::arg("rows_per_block"), nb::arg("n_rows"),
           nb::arg("max_tokens"),
           "Says where the engine's cache is: an address for each layer's keys and values, and the "
           "strides (row, head, element, block) in bytes. An element stride of 0: contiguous; the "
           "block stride counts where rows_per_block is not 0. The memory must outlive the store.")
      .def("compose_paged", &compose_paged, nb::arg("loads"), nb::arg("rows"), nb::arg("stream"),
           nb::sig("def compose_paged(self, loads: PreparedLoad | list[PreparedLoad], rows: "
                   "numpy.typing.NDArray[numpy.int32] | numpy.typing.NDArray[numpy.int64] | "
                   "list[int], stream: int) -> None"),
           "Puts into the stream what writes prepared records, one after the other, into these "
           "rows of the bound cache. The loads may go afterwards. Raises ValueError, or RetryError "
           "when the device failed.")
      .def("capture_paged", &capture_paged, nb::arg("runs"), nb::arg("rows"), nb::arg("stream"),
           nb::sig("def capture_paged(self, runs: list[tuple[dict[str, str | int], "
                   "numpy.typing.NDArray[numpy.int32] | list[int], int]], rows: "
                   "numpy.typing.NDArray[numpy.int32] | numpy.typing.NDArray[numpy.int64] | "
                   "list[int], stream: int) -> PendingCapture"),
           "Puts into the stream what reads runs of tokens (meta as for capture, tokens, "
           "first_position) out of these rows. Raises ValueError, MemoryError (too many are "
           "pending) or RetryError.")
      .def("finish_capture", &finish_capture, nb::arg("pending"),
           nb::sig("def finish_capture(self, pending: PendingCapture) -> list[str | None]"),
           "Waits for the device if it must, and stores the records: the key of each, or None "
           "where it could not be stored.");
  m.def("slot_rows", &slot_rows, nb::arg("blocks"), nb::arg("block_size"),
        nb::sig("def slot_rows(blocks: list[tuple[numpy.typing.NDArray[numpy.int32] | "
                "numpy.typing.NDArray[numpy.int64] | list[int], int, int]], block_size: int) -> "
                "numpy.typing.NDArray[numpy.int32]"),
        "The rows of tokens first_token and on of sequences whose blocks these are: (block_ids, "
        "first_token, n_tokens).");
}

}  // namespace inferscale::python
