#include "record_store.h"

#include <dlfcn.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "connector/rank_store.h"
#include "convert.h"
#include "errors.h"

namespace inferscale::python {
namespace {

constexpr std::uint64_t kMaxU32 = 0xFFFFFFFF;

/// OpenMP's entry in the runtime that this process has loaded, for torch as a rule; null: none.
ParallelRegion find_openmp() {
  return reinterpret_cast<ParallelRegion>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}

std::unique_ptr<RankStore> open(const std::filesystem::path& directory, std::uint64_t host_budget,
                                std::uint64_t disk_budget, const ModelSpec& spec,
                                const std::string& codec, std::uint32_t shard_index,
                                std::uint32_t shard_count, std::uint32_t max_positions,
                                unsigned threads, bool openmp) {
  RankStoreOptions options;
  options.directory = directory;
  options.host_budget_bytes = host_budget;
  options.disk_budget_bytes = disk_budget;
  options.spec = spec;
  options.codec = to_codec("codec", codec);
  options.shard_index = shard_index;
  options.shard_count = shard_count;
  options.max_positions = max_positions;
  options.threads = threads;
  options.region = openmp ? find_openmp() : nullptr;
  return take(unlocked([&] { return RankStore::open(std::move(options)); }));
}

LoadItem to_item(nb::handle value) {
  const std::vector<nb::object> parts = to_items("item", value);
  if (parts.size() != 5) {
    throw nb::value_error(
        "an item is (key, scope_hash, context_id or None, tokens, first_position)");
  }
  return to_load_item(parts);
}

PreparedLoad prepare(RankStore& store, nb::handle items) {
  std::vector<LoadItem> wanted;
  for (const nb::object& item : to_items("items", items)) {
    wanted.push_back(to_item(item));
  }
  PreparedLoad load = unlocked([&] { return store.prepare(wanted); });
  if (!load.status().ok()) {
    raise(load.status(), &load.failed_key());
  }
  return load;
}

void compose(RankStore& store, nb::handle loads, const nb::ndarray<>& k, const nb::ndarray<>& v) {
  const CacheLayout cache = writable_cache(k, v);
  std::vector<const PreparedLoad*> prepared;
  PreparedLoad own;
  if (nb::isinstance<PreparedLoad>(loads)) {
    prepared.push_back(nb::cast<const PreparedLoad*>(loads));
  } else {
    const std::vector<nb::object> items = to_items("items", loads);
    for (const nb::object& item : items) {
      if (nb::isinstance<PreparedLoad>(item)) {
        prepared.push_back(nb::cast<const PreparedLoad*>(item));
      }
    }
    if (prepared.empty()) {
      own = prepare(store, loads);
      prepared.push_back(&own);
    } else if (prepared.size() != items.size()) {
      throw nb::type_error("items must be all prepared loads or none");
    }
  }
  check(unlocked([&] { return store.compose(prepared, cache); }));
}

using Slots = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;

std::span<const std::uint32_t> to_slots(const Slots& slots) {
  return {slots.data(), slots.shape(0)};
}

void place(RankStore& store, nb::handle placements, const EngineCache& cache) {
  std::vector<Placement> wanted;
  std::vector<nb::object> kept;
  for (const nb::object& placement : to_items("placements", placements)) {
    const std::vector<nb::object> parts = to_items("placement", placement);
    Slots slots;
    if (parts.size() != 3 || !nb::isinstance<PreparedLoad>(parts[0]) ||
        !nb::try_cast<Slots>(parts[2], slots, false)) {
      throw nb::type_error("a placement is (prepared load, begin, slots as a uint32 array)");
    }
    wanted.push_back({nb::cast<const PreparedLoad*>(parts[0]),
                      static_cast<std::uint32_t>(to_number("begin", parts[1], kMaxU32)),
                      to_slots(slots)});
    kept.insert(kept.end(), parts.begin(), parts.end());
  }
  check(unlocked([&] { return store.place(wanted, cache.writable()); }));
}

std::string capture(RankStore& store, const nb::dict& meta, nb::handle tokens,
                    std::uint32_t first_position, const nb::ndarray<nb::ro>& k,
                    const nb::ndarray<nb::ro>& v) {
  const CaptureMeta about = to_capture_meta(meta);
  const std::vector<TokenId> ids = to_tokens("tokens", tokens);
  const ConstCacheLayout cache = readable_cache(k, v);
  check(unlocked([&] { return store.capture(about, ids, first_position, cache); }));
  return about.key.value.to_hex();
}

std::string capture_rows(RankStore& store, const nb::dict& meta, nb::handle tokens,
                         std::uint32_t first_position, const EngineCache& cache,
                         const Slots& slots) {
  const CaptureMeta about = to_capture_meta(meta);
  const std::vector<TokenId> ids = to_tokens("tokens", tokens);
  check(unlocked([&] {
    return store.capture_rows(about, ids, first_position, cache.readable(), to_slots(slots));
  }));
  return about.key.value.to_hex();
}

nb::list records(RankStore& store) {
  const auto all = take(unlocked([&] { return store.records(); }));
  nb::list list;
  for (const StoredRecord& record : all) {
    list.append(nb::make_tuple(record.key.value.to_hex(), record.meta.scope.to_hex(),
                               context_kind_name(record.meta.context_kind),
                               record.meta.context_id.to_hex(), from_tokens(record.tokens)));
  }
  return list;
}

nb::dict from_counts(const EraseCounts& counts) {
  nb::dict dict;
  dict["gpu"] = counts.gpu;
  dict["pinned"] = counts.pinned;
  dict["host"] = counts.host;
  dict["disk"] = counts.disk;
  dict["leased"] = counts.leased;
  return dict;
}

nb::dict verify(RankStore& store) {
  const StoreVerdict verdict = take(unlocked([&] { return store.verify(); }));
  nb::dict dict;
  dict["records"] = verdict.records;
  dict["corrupt"] = from_keys(verdict.corrupt);
  dict["foreign"] = verdict.foreign;
  return dict;
}

nb::dict check_records(RankStore& store, nb::handle keys) {
  const std::vector<RecordKey> wanted = to_keys("keys", keys);
  const CheckedRecords checked = take(unlocked([&] { return store.check(wanted); }));
  nb::dict dict;
  dict["sound"] = from_keys(checked.sound);
  dict["corrupt"] = from_keys(checked.corrupt);
  return dict;
}

nb::dict from_tier(const TierStats& tier) {
  nb::dict dict;
  dict["name"] = tier.name;
  dict["records"] = tier.records;
  dict["bytes"] = tier.bytes;
  dict["budget_bytes"] = tier.budget_bytes;
  dict["hits"] = tier.hits;
  dict["evictions"] = tier.evictions;
  dict["corrupt"] = tier.corrupt;
  dict["dead_bytes"] = tier.dead_bytes;
  dict["segments"] = tier.segments;
  dict["torn"] = tier.torn;
  dict["compactions"] = tier.compactions;
  dict["syncs"] = tier.syncs;
  dict["degraded"] = tier.degraded;
  return dict;
}

nb::dict stats(RankStore& store) {
  const KvStoreStats stats = take(unlocked([&] { return store.stats(); }));
  nb::list tiers;
  for (const TierStats& tier : stats.tiers) {
    tiers.append(from_tier(tier));
  }
  nb::dict misses;
  for (std::size_t i = 0; i < std::size(stats.misses_by_reason); ++i) {
    if (stats.misses_by_reason[i] > 0) {
      misses[miss_reason_name(static_cast<MissReason>(i))] = stats.misses_by_reason[i];
    }
  }
  nb::dict dict;
  dict["tiers"] = tiers;
  dict["puts"] = stats.puts;
  dict["promotions"] = stats.promotions;
  dict["written_later"] = stats.written_later;
  dict["leases_active"] = stats.leases_active;
  dict["misses"] = misses;
  dict["unreadable"] = store.unreadable();
  return dict;
}

void bind_transfers(nb::class_<RankStore>& store) {
  store
      .def("prepare", &prepare, nb::arg("items"),
           nb::sig("def prepare(self, items: list[tuple[str, str, str | None, "
                   "numpy.typing.NDArray[numpy.int32] | list[int], int]]) -> PreparedLoad"),
           "Verifies and leases records: (key, scope_hash, context_id or None, tokens, "
           "first_position). Raises KeyError (absent), CorruptionError (damaged; dropped), "
           "ValueError, PermissionError or MemoryError; the exception's `key` names the record.")
      .def("compose", &compose, nb::arg("items"), nb::arg("k").noconvert(),
           nb::arg("v").noconvert(),
           nb::sig("def compose(self, items: PreparedLoad | list[PreparedLoad] | list[tuple[str, "
                   "str, str | None, numpy.typing.NDArray[numpy.int32] | list[int], int]], k: "
                   "typing.Any, v: typing.Any) -> None"),
           "Writes records one after the other into k and v [layers, tokens, heads, head_dim], "
           "float16, bfloat16 or float32, keys rotated to their positions. Raises what prepare "
           "raises.")
      .def("capture", &capture, nb::arg("meta"), nb::arg("tokens"), nb::arg("first_position"),
           nb::arg("k").noconvert(), nb::arg("v").noconvert(),
           nb::sig("def capture(self, meta: dict[str, str | int], tokens: "
                   "numpy.typing.NDArray[numpy.int32] | list[int], first_position: int, k: "
                   "typing.Any, v: typing.Any) -> str"),
           "Stores the rows k and v [layers, tokens, heads, head_dim] of tokens that stand at "
           "first_position and on. `meta`: key, scope_hash, context_id, context_kind, "
           "context_tokens. Returns the key.")
      .def("place", &place, nb::arg("placements"), nb::arg("cache"),
           nb::sig("def place(self, placements: list[tuple[PreparedLoad, int, "
                   "numpy.typing.NDArray[numpy.uint32]]], cache: EngineCache) -> None"),
           "Writes tokens of prepared records into an engine's cache: of each (load, begin, slots) "
           "those at the positions begin, begin + 1, ..., one for each slot. A slot is block * "
           "tokens of a block + token. ValueError: nothing is written.")
      .def("capture_rows", &capture_rows, nb::arg("meta"), nb::arg("tokens"),
           nb::arg("first_position"), nb::arg("cache"), nb::arg("slots").noconvert(),
           nb::sig("def capture_rows(self, meta: dict[str, str | int], tokens: "
                   "numpy.typing.NDArray[numpy.int32] | list[int], first_position: int, cache: "
                   "EngineCache, slots: numpy.typing.NDArray[numpy.uint32]) -> str"),
           "As capture, from the slots of an engine's cache.");
}

}  // namespace

LoadItem to_load_item(std::span<const nb::object> parts) {
  LoadItem item;
  item.key = to_key("key", parts[0]);
  item.scope = to_hash("scope_hash", parts[1]);
  if (!parts[2].is_none()) {
    item.context_id = to_hash("context_id", parts[2]);
  }
  item.tokens = to_tokens("tokens", parts[3]);
  item.first_position = static_cast<std::uint32_t>(to_number("first_position", parts[4], kMaxU32));
  return item;
}

KvCodec to_codec(const char* field, const std::string& name) {
  const std::optional<KvCodec> known = codec_from_name(name);
  if (!known) {
    throw nb::value_error(
        (std::string(field) + " must be f16, bf16, f32, q8, fp8_e4m3 or q4").c_str());
  }
  return *known;
}

CaptureMeta to_capture_meta(const nb::dict& meta) {
  static constexpr const char* kFields[] = {"key", "scope_hash", "context_id", "context_kind",
                                            "context_tokens"};
  check_fields("meta", meta, kFields);
  CaptureMeta about;
  about.key = to_key("key", field_of(meta, "key"));
  about.scope = to_hash("scope_hash", field_of(meta, "scope_hash"));
  about.context_id = to_hash("context_id", field_of(meta, "context_id"));
  about.context_kind = to_context_kind(field_of(meta, "context_kind"));
  about.context_tokens = static_cast<std::uint32_t>(
      to_number("context_tokens", field_of(meta, "context_tokens"), kMaxU32));
  return about;
}

void bind_record_store(nb::module_& m) {
  m.def(
      "has_openmp", [] { return find_openmp() != nullptr; },
      "Whether this process has loaded an OpenMP runtime, whose threads a RecordStore can use.");
  nb::class_<EngineCache>(
      m, "EngineCache",
      "An engine's KV cache: of each layer keys and values [blocks, tokens of a "
      "block, heads, head_dim], views of the engine's own memory, which must "
      "stay. Raises ValueError unless they lie alike in every layer.")
      .def(nb::init<const std::vector<std::pair<nb::ndarray<>, nb::ndarray<>>>&>(),
           nb::arg("layers"),
           nb::sig("def __init__(self, layers: list[tuple[typing.Any, typing.Any]]) -> None"));
  nb::class_<PreparedLoad>(m, "PreparedLoad", "Records that are leased while this lives.")
      .def_prop_ro("tokens", &PreparedLoad::tokens);
  nb::class_<RankStore> store(m, "RecordStore",
                              "The records of one rank of an engine. Thread-safe.");
  store
      .def(nb::new_(&open), nb::arg("directory"), nb::arg("host_budget"), nb::arg("disk_budget"),
           nb::arg("spec"), nb::arg("codec"), nb::arg("shard_index"), nb::arg("shard_count"),
           nb::arg("max_positions"), nb::arg("threads") = 1, nb::arg("openmp") = false,
           "`threads`: for large loads, with the caller's own; `openmp`: the OpenMP runtime's, "
           "where this process has loaded one, of the thread that calls.")
      .def("records", &records,
           nb::sig("def records(self) -> list[tuple[str, str, str, str, "
                   "numpy.typing.NDArray[numpy.int32]]]"),
           "(key, scope_hash, context kind, context_id, tokens) of every record of this model and "
           "shard; keys and values are not read.")
      .def(
          "contains",
          [](const RankStore& self, nb::handle key) { return self.contains(to_key("key", key)); },
          nb::arg("key"), nb::sig("def contains(self, key: str) -> bool"))
      .def(
          "erase",
          [](RankStore& self, nb::handle keys) {
            const std::vector<RecordKey> gone = to_keys("keys", keys);
            return from_counts(take(unlocked([&] { return self.erase(gone); })));
          },
          nb::arg("keys"), nb::sig("def erase(self, keys: list[str]) -> dict[str, int]"),
          "Returns how many records were erased from each tier, and how many of them were leased.")
      .def(
          "erase_scope",
          [](RankStore& self, nb::handle scope) {
            const Hash128 hash = to_hash("scope_hash", scope);
            return from_counts(take(unlocked([&] { return self.erase_scope(hash); })));
          },
          nb::arg("scope_hash"),
          nb::sig("def erase_scope(self, scope_hash: str) -> dict[str, int]"))
      .def("verify", &verify, nb::sig("def verify(self) -> dict[str, typing.Any]"),
           "Reads every record; damaged ones are dropped and named.")
      .def("check", &check_records, nb::arg("keys"),
           nb::sig("def check(self, keys: list[str]) -> dict[str, list[str]]"),
           "Reads these records: which are `sound`, and which were damaged (`corrupt`) and are "
           "dropped.")
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, typing.Any]"))
      .def("flush", [](RankStore& self) { check(unlocked([&] { return self.flush(); })); })
      .def("close", [](RankStore& self) { unlocked([&] { self.close(); }); });
  bind_transfers(store);
  bind_device_cache(m, store);
}

}  // namespace inferscale::python
