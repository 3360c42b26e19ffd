#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <charconv>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "connector/load_plan.h"
#include "connector/rank_store.h"
#include "convert.h"
#include "errors.h"
#include "record_store.h"

#ifdef INFERSCALE_WITH_CUDA
#include "kv/cuda/cuda_device.h"
#endif

namespace inferscale::python {
namespace {

constexpr std::uint64_t kMaxU32 = 0xFFFFFFFF;
constexpr std::uint64_t kMaxAddress = ~0ULL;

using Rows = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// Addresses of the layers, as integers: they are the engine's, and of a device as a rule.
std::vector<std::byte*> to_addresses(const char* field, const nb::dict& caches) {
  std::vector<std::byte*> addresses;
  for (const nb::object& item : to_items(field, field_of(caches, field))) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): what the engine calls its memory
    addresses.push_back(reinterpret_cast<std::byte*>(
        static_cast<std::uintptr_t>(to_number(field, item, kMaxAddress))));
  }
  return addresses;
}

/// (block, row, head) or (block, row, head, element), in bytes.
CacheStrides to_strides(const char* field, const nb::dict& caches) {
  const std::vector<nb::object> parts = to_items(field, field_of(caches, field));
  if (parts.size() != 3 && parts.size() != 4) {
    throw nb::value_error((std::string(field) + " must be (block, row, head[, element])").c_str());
  }
  CacheStrides strides;
  strides.block = to_number(field, parts[0], kMaxAddress);
  strides.row = to_number(field, parts[1], kMaxAddress);
  strides.head = to_number(field, parts[2], kMaxAddress);
  strides.element = parts.size() == 4 ? to_number(field, parts[3], kMaxAddress) : 0;
  return strides;
}

CacheLayout to_layout(const nb::dict& caches) {
  static constexpr const char* kFields[] = {
      "dtype", "device",    "n_kv_heads", "head_dim",       "k",
      "v",     "k_strides", "v_strides",  "rows_per_block", "n_rows"};
  check_fields("caches", caches, kFields);
  CacheLayout cache;
  cache.dtype = to_codec("dtype", to_text("dtype", field_of(caches, "dtype")));
  cache.k = to_addresses("k", caches);
  cache.v = to_addresses("v", caches);
  cache.k_strides = to_strides("k_strides", caches);
  cache.v_strides = to_strides("v_strides", caches);
  cache.rows_per_block = to_number("rows_per_block", field_of(caches, "rows_per_block"), kMaxU32);
  cache.n_rows = to_number("n_rows", field_of(caches, "n_rows"), kMaxU32);
  cache.shape.n_layers = static_cast<std::uint32_t>(cache.k.size());
  cache.shape.n_kv_heads =
      static_cast<std::uint32_t>(to_number("n_kv_heads", field_of(caches, "n_kv_heads"), 1024));
  cache.shape.head_dim_k = cache.shape.head_dim_v =
      static_cast<std::uint32_t>(to_number("head_dim", field_of(caches, "head_dim"), 1024));
  return cache;
}

/// What makes the device of the name "plain" (plain memory, for tests) or "cuda:N", and its number.
/// Raises ValueError, or NotImplementedError when this build has no such device.
DeviceFactory to_device(const std::string& name, int* index) {
  if (name == "plain") {
    return make_plain_device;
  }
  constexpr std::string_view kCuda = "cuda:";
  const char* const end = name.data() + name.size();
  const char* const number = name.data() + kCuda.size();
  *index = -1;
  if (!name.starts_with(kCuda) || std::from_chars(number, end, *index).ptr != end || *index < 0) {
    throw nb::value_error("device must be 'plain' or 'cuda:N'");
  }
#ifdef INFERSCALE_WITH_CUDA
  return make_cuda_device;
#else
  raise(unsupported("device '" + name + "': this build has no CUDA"));
#endif
}

void attach_device(RankStore& store, const nb::dict& caches, std::uint64_t gpu_budget,
                   std::uint64_t pinned_budget, std::uint32_t max_load_tokens,
                   std::uint32_t max_capture_tokens) {
  const CacheLayout cache = to_layout(caches);
  int index = 0;
  const DeviceFactory factory = to_device(to_text("device", field_of(caches, "device")), &index);
  check(unlocked([&] {
    const Status attached = store.attach_device(factory, index, gpu_budget, pinned_budget);
    return attached.ok() ? store.bind_cache(cache, max_load_tokens, max_capture_tokens) : attached;
  }));
}

std::vector<std::uint32_t> to_rows(nb::handle value) {
  Rows rows;
  if (!nb::try_cast<Rows>(nb::borrow(value), rows, false)) {
    throw nb::type_error("rows must be a one-dimensional uint32 array");
  }
  return {rows.data(), rows.data() + rows.shape(0)};
}

void* to_stream(std::uint64_t stream) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a handle of the engine's
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream));
}

/// What several requests load, in their order.
std::vector<LoadItem> to_load(nb::handle plans) {
  std::vector<LoadItem> wanted;
  for (const nb::object& plan : to_items("plans", plans)) {
    const std::vector<nb::object> parts = to_items("plan", plan);
    if (parts.size() != 2 || !PyBytes_Check(parts[0].ptr())) {
      throw nb::value_error("a plan is (bytes, tokens of its records)");
    }
    const std::vector<TokenId> tokens = to_tokens("tokens", parts[1]);
    std::vector<LoadItem> items =
        take(load_items(as_bytes(nb::borrow<nb::bytes>(parts[0])), tokens));
    wanted.insert(wanted.end(), std::make_move_iterator(items.begin()),
                  std::make_move_iterator(items.end()));
  }
  return wanted;
}

void load(RankStore& store, nb::handle plans, nb::handle rows, std::uint64_t stream) {
  const std::vector<LoadItem> wanted = to_load(plans);
  const std::vector<std::uint32_t> places = to_rows(rows);
  PreparedLoad prepared;
  const Status status = unlocked([&] {
    prepared = store.prepare(wanted);
    const PreparedLoad* const loads[] = {&prepared};
    return prepared.status().ok() ? store.compose_paged(loads, places, to_stream(stream))
                                  : prepared.status();
  });
  if (!status.ok()) {
    raise(status, prepared.status().ok() ? nullptr : &prepared.failed_key());
  }
}

/// A capture and the store that it goes to, which lives as long.
struct Captured {
  nb::object owner;
  RankStore* store = nullptr;
  PendingCapture pending;
};

Captured begin_capture(nb::handle self, nb::handle runs, std::uint64_t stream) {
  std::vector<CaptureItem> items;
  std::vector<std::uint32_t> rows;
  for (const nb::object& run : to_items("runs", runs)) {
    const std::vector<nb::object> parts = to_items("run", run);
    if (parts.size() != 4 || !PyDict_Check(parts[0].ptr())) {
      throw nb::value_error("a run is (meta, tokens, first_position, rows)");
    }
    CaptureItem& item = items.emplace_back();
    item.meta = to_capture_meta(nb::borrow<nb::dict>(parts[0]));
    item.tokens = to_tokens("tokens", parts[1]);
    item.first_position =
        static_cast<std::uint32_t>(to_number("first_position", parts[2], kMaxU32));
    const std::vector<std::uint32_t> own = to_rows(parts[3]);
    if (own.size() != item.tokens.size()) {
      throw nb::value_error("rows: each token needs one");
    }
    rows.insert(rows.end(), own.begin(), own.end());
  }
  auto* store = nb::cast<RankStore*>(self);
  PendingCapture pending = take(
      unlocked([&] { return store->capture_paged(std::move(items), rows, to_stream(stream)); }));
  return {nb::borrow(self), store, std::move(pending)};
}

nb::bytes first_layer_keys(Captured& self, std::size_t run) {
  const std::vector<float> keys =
      take(unlocked([&] { return self.store->first_layer_keys(self.pending, run); }));
  return nb::bytes(keys.data(), keys.size() * sizeof(float));
}

}  // namespace

void bind_device_cache(nb::module_& m, nb::class_<RankStore>& store) {
#ifdef INFERSCALE_WITH_CUDA
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
  nb::class_<Captured>(m, "CapturedRows", "Rows of a cache on their way to the host.")
      .def(
          "wait", [](Captured& self) { check(unlocked([&] { return self.pending.wait(); })); },
          "Returns when the bytes are there. Raises RetryError when the device failed.")
      .def(
          "store",
          [](Captured& self, std::size_t run) {
            check(unlocked([&] { return self.store->store(self.pending, run); }));
          },
          nb::arg("run"), "After `wait`: stores one run as a record. Raises as capture does.")
      .def(
          "release", [](Captured& self) { unlocked([&] { self.pending = PendingCapture(); }); },
          "Zeroes its memory, which another capture may have then. Nothing can be read any more.")
      .def("first_layer_keys", &first_layer_keys, nb::arg("run"),
           "After `wait`: [tokens][heads][head_dim] of one run as the record has it, in float32, "
           "without positions.");
  store
      .def("attach_device", &attach_device, nb::arg("caches"), nb::kw_only(), nb::arg("gpu_budget"),
           nb::arg("pinned_budget"), nb::arg("max_load_tokens"), nb::arg("max_capture_tokens"),
           nb::sig("def attach_device(self, caches: dict[str, typing.Any], *, gpu_budget: int, "
                   "pinned_budget: int, max_load_tokens: int, max_capture_tokens: int) -> None"),
           "Puts tiers that a device reads in front of the store, for the engine's caches: the "
           "`device` \"cuda:N\" or \"plain\" (plain memory, for tests), addresses of the layers "
           "`k` and `v`, strides in bytes "
           "(block, row, head[, element]).")
      .def_prop_ro("token_bytes", &RankStore::token_bytes,
                   "Bytes of a token's keys and values in the codec of new records.")
      .def_prop_ro("device_tokens", &RankStore::device_tokens,
                   "How many tokens' records the larger of the device's tiers holds.")
      .def("load", &load, nb::arg("plans"), nb::arg("rows"), nb::arg("stream"),
           nb::sig("def load(self, plans: list[tuple[bytes, numpy.typing.NDArray[numpy.int32]]], "
                   "rows: numpy.typing.NDArray[numpy.uint32], stream: int) -> None"),
           "Queues the placing of records: of each request what Match.plan gives, and the ids of "
           "its records' tokens. What it says of them is placed, in `rows`, one record after the "
           "other. Does not wait for the device. Raises what prepare raises.")
      .def("begin_capture", &begin_capture, nb::arg("runs"), nb::arg("stream"),
           nb::sig("def begin_capture(self, runs: list[tuple[dict[str, str | int], "
                   "numpy.typing.NDArray[numpy.int32] | list[int], int, "
                   "numpy.typing.NDArray[numpy.uint32]]], stream: int) -> CapturedRows"),
           "Queues the reading of rows: (meta as in capture, tokens, first_position, rows). Does "
           "not wait for the device.");
}

}  // namespace inferscale::python
