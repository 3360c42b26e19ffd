#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings.h"
#include "connector/scheduler_index.h"
#include "convert.h"
#include "errors.h"

namespace inferscale::python {
namespace {

bool add(SchedulerIndex& index, std::uint32_t rank, nb::handle key, nb::handle scope,
         nb::handle kind, nb::handle tokens) {
  const IndexedRecord record{to_key("key", key), to_hash("scope_hash", scope),
                             to_context_kind(kind), to_tokens("tokens", tokens)};
  return take(index.add(rank, record));
}

Match match(const SchedulerIndex& index, nb::handle tokens, const RequestParams& params) {
  const std::vector<TokenId> prompt = to_tokens("tokens", tokens);
  nb::gil_scoped_release unlocked;
  return index.match(prompt, params);
}

void bind_match(nb::module_& m) {
  nb::class_<MatchedSegment>(m, "MatchedSegment", "A record and the tokens that it serves.")
      .def_prop_ro("key", [](const MatchedSegment& s) { return s.key.value.to_hex(); })
      .def_ro("begin", &MatchedSegment::begin)
      .def_ro("end", &MatchedSegment::end);
  nb::class_<MatchFallback>(m, "MatchFallback", "How many keys were not matched, for one reason.")
      .def_prop_ro("reason", [](const MatchFallback& f) { return match_miss_name(f.reason); })
      .def_ro("count", &MatchFallback::count);
  nb::class_<Match>(m, "Match", "The run of records that may be injected.")
      .def_ro("begin", &Match::begin)
      .def_ro("end", &Match::end)
      .def_ro("segments", &Match::segments)
      .def_ro("fallbacks", &Match::fallbacks);
}

}  // namespace

void bind_index(nb::module_& m) {
  bind_match(m);
  nb::class_<SchedulerIndex>(m, "SchedulerIndex",
                             "Which records are ready on every rank. Thread-safe.")
      .def(nb::new_([](std::uint32_t n_ranks) { return take(SchedulerIndex::create(n_ranks)); }),
           nb::arg("n_ranks"))
      .def("add", &add, nb::arg("rank"), nb::arg("key"), nb::arg("scope_hash"), nb::arg("kind"),
           nb::arg("tokens"),
           nb::sig("def add(self, rank: int, key: str, scope_hash: str, kind: str, tokens: "
                   "numpy.typing.NDArray[numpy.int32] | list[int]) -> bool"),
           "A rank has a record. False when it was erased and not expected since, or when ranks "
           "disagree about it.")
      .def(
          "drop",
          [](SchedulerIndex& index, std::uint32_t rank, nb::handle keys) {
            check(index.drop(rank, to_keys("keys", keys)));
          },
          nb::arg("rank"), nb::arg("keys"),
          nb::sig("def drop(self, rank: int, keys: list[str]) -> None"))
      .def(
          "expect",
          [](SchedulerIndex& index, nb::handle key, nb::handle scope) {
            index.expect(to_key("key", key), to_hash("scope_hash", scope));
          },
          nb::arg("key"), nb::arg("scope_hash"),
          nb::sig("def expect(self, key: str, scope_hash: str) -> None"),
          "A capture of this record is going on: it may be added again after an erase.")
      .def(
          "erase",
          [](SchedulerIndex& index, nb::handle keys) { return index.erase(to_keys("keys", keys)); },
          nb::arg("keys"), nb::sig("def erase(self, keys: list[str]) -> int"),
          "Returns how many of the records were known.")
      .def(
          "erase_owner",
          [](SchedulerIndex& index, const std::string& tenant, const std::string& user) {
            return from_keys(index.erase_owner(tenant, user));
          },
          nb::arg("tenant"), nb::arg("user"),
          "Returns the keys of the records of this owner, those that are being captured included.")
      .def(
          "learn_scope",
          [](SchedulerIndex& index, nb::handle scope) { index.learn_scope(to_scope(scope)); },
          nb::arg("scope"), nb::sig("def learn_scope(self, scope: dict[str, str] | str) -> None"))
      .def("match", &match, nb::arg("tokens"), nb::arg("params"),
           nb::sig("def match(self, tokens: numpy.typing.NDArray[numpy.int32] | list[int], params: "
                   "RequestParams) -> Match"))
      .def(
          "contains",
          [](const SchedulerIndex& index, nb::handle key) {
            return index.contains(to_key("key", key));
          },
          nb::arg("key"), nb::sig("def contains(self, key: str) -> bool"),
          "Whether a record is ready on every rank.")
      .def_prop_ro("size", &SchedulerIndex::size)
      .def("__len__", &SchedulerIndex::size);
}

}  // namespace inferscale::python
