#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings.h"
#include "connector/load_plan.h"
#include "connector/scheduler_index.h"
#include "convert.h"
#include "errors.h"

namespace inferscale::python {
namespace {

bool add(SchedulerIndex& index, std::uint32_t rank, nb::handle key, nb::handle scope,
         nb::handle kind, nb::handle tokens, nb::handle context) {
  IndexedRecord record{to_key("key", key), to_hash("scope_hash", scope), to_context_kind(kind),
                       to_tokens("tokens", tokens)};
  if (!context.is_none()) {
    record.context_id = to_hash("context_id", context);
  }
  return take(index.add(rank, record));
}

Match match(const SchedulerIndex& index, nb::handle tokens, const RequestParams& params) {
  const std::vector<TokenId> prompt = to_tokens("tokens", tokens);
  nb::gil_scoped_release unlocked;
  return index.match(prompt, params);
}

nb::tuple plan(const Match& match, std::uint32_t begin, std::uint32_t end) {
  const LoadPlan plan = plan_load(match, begin, end);
  return nb::make_tuple(nb::bytes(plan.bytes.data(), plan.bytes.size()), plan.first, plan.last);
}

nb::tuple limit(const Match& match, std::uint32_t local_hit, std::uint64_t max_tokens) {
  const LoadLimit found = limit_load(match, local_hit, max_tokens);
  return nb::make_tuple(found.end, found.left_out);
}

nb::list spans(const Match& match, std::uint32_t before) {
  nb::list list;
  for (const MatchedSegment& segment : match.segments) {
    if (segment.begin < before) {
      nb::dict dict;
      dict["key"] = segment.key.value.to_hex();
      dict["begin"] = segment.begin;
      dict["end"] = segment.end;
      list.append(dict);
    }
  }
  return list;
}

nb::bytes plan_of(nb::handle records) {
  Match match;
  for (const nb::object& record : to_items("records", records)) {
    const std::vector<nb::object> parts = to_items("record", record);
    if (parts.size() != 5) {
      throw nb::value_error("a record is (key, scope_hash, context_id or None, begin, end)");
    }
    MatchedSegment& segment = match.segments.emplace_back();
    segment.key = to_key("key", parts[0]);
    segment.scope = to_hash("scope_hash", parts[1]);
    if (!parts[2].is_none()) {
      segment.context_id = to_hash("context_id", parts[2]);
    }
    segment.begin = static_cast<std::uint32_t>(to_number("begin", parts[3], 0xFFFFFFFF));
    segment.end = static_cast<std::uint32_t>(to_number("end", parts[4], 0xFFFFFFFF));
    if (segment.begin >= segment.end) {
      throw nb::value_error("a record must have begin < end");
    }
  }
  const LoadPlan plan = plan_load(match, 0, 0xFFFFFFFF);
  return nb::bytes(plan.bytes.data(), plan.bytes.size());
}

nb::list items_of(const nb::bytes& plan, nb::handle tokens) {
  nb::list list;
  for (const LoadItem& item : take(load_items(as_bytes(plan), to_tokens("tokens", tokens)))) {
    const nb::object context =
        item.context_id ? nb::object(nb::cast(item.context_id->to_hex())) : nb::none();
    list.append(nb::make_tuple(item.key.value.to_hex(), item.scope.to_hex(), context,
                               from_tokens(item.tokens), item.first_position));
  }
  return list;
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
      .def_prop_ro("n_segments", [](const Match& match) { return match.segments.size(); })
      .def("spans", &spans, nb::arg("before"),
           nb::sig("def spans(self, before: int) -> list[dict[str, typing.Any]]"),
           "{\"key\", \"begin\", \"end\"} of the segments that begin before this token.")
      .def("limit", &limit, nb::arg("local_hit"), nb::arg("max_tokens"),
           nb::sig("def limit(self, local_hit: int, max_tokens: int) -> tuple[int, int]"),
           "Where the segments end of which so many tokens are loaded behind the first local_hit, "
           "and how many segments are left out.")
      .def("plan", &plan, nb::arg("begin"), nb::arg("end"),
           nb::sig("def plan(self, begin: int, end: int) -> tuple[bytes, int, int]"),
           "What RecordStore.load and load_items are told of the segments that these tokens touch, "
           "and the range of the prompt whose ids are the records'.")
      .def_ro("fallbacks", &Match::fallbacks);
}

void bind_plans(nb::module_& m) {
  m.def(
      "token_array", [](nb::handle tokens) { return from_tokens(to_tokens("tokens", tokens)); },
      nb::arg("tokens"),
      nb::sig("def token_array(tokens: numpy.typing.NDArray[numpy.int32] | list[int]) -> "
              "numpy.typing.NDArray[numpy.int32]"),
      "A copy as an array. Raises ValueError for what is no token id.");
  m.def("load_plan", &plan_of, nb::arg("records"),
        nb::sig("def load_plan(records: list[tuple[str, str, str | None, int, int]]) -> bytes"),
        "What RecordStore.load and load_items are told of whole records: (key, scope_hash, "
        "context_id or None, begin, end).");
  m.def("load_items", &items_of, nb::arg("plan"), nb::arg("tokens"),
        nb::sig("def load_items(plan: bytes, tokens: numpy.typing.NDArray[numpy.int32]) -> "
                "list[tuple[str, str, str | None, numpy.typing.NDArray[numpy.int32], int]]"),
        "The records of a plan, as RecordStore.prepare takes them. Raises ValueError.");
}

}  // namespace

void bind_index(nb::module_& m) {
  bind_match(m);
  bind_plans(m);
  nb::class_<SchedulerIndex>(m, "SchedulerIndex",
                             "Which records are ready on every rank. Thread-safe.")
      .def(nb::new_([](std::uint32_t n_ranks) { return take(SchedulerIndex::create(n_ranks)); }),
           nb::arg("n_ranks"))
      .def("add", &add, nb::arg("rank"), nb::arg("key"), nb::arg("scope_hash"), nb::arg("kind"),
           nb::arg("tokens"), nb::arg("context_id") = nb::none(),
           nb::sig("def add(self, rank: int, key: str, scope_hash: str, kind: str, tokens: "
                   "numpy.typing.NDArray[numpy.int32] | list[int], context_id: str | None = None) "
                   "-> bool"),
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
