// Deletion: what goes, what is counted, what stays.
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

const Scope kAlice = user_scope("alice");

Turn turn(std::string id, const Scope& scope = kAlice) {
  return Turn{std::move(id), scope, "Alice", "user", "said something", 0, 0};
}

std::vector<RecordKey> keys(std::initializer_list<unsigned> numbers) {
  std::vector<RecordKey> result;
  for (const unsigned number : numbers) {
    result.push_back(RecordKey{hash_of(number)});
  }
  return result;
}

TEST_P(CatalogSuite, ErasesAFactWithAllThatBelongsToIt) {
  NewFact item = fact("Alice lives in Graz");
  item.vectors = unit_vectors(3);
  item.source_turns = {"D1:1", "D1:2"};
  const std::string id = add(item).id;
  NewFact other = fact("Alice likes tea");
  other.source_turns = {"D1:2"};
  const std::string kept = add(other).id;
  unwrap(catalog().add_turns(std::vector{turn("D1:1"), turn("D1:2"), turn("D1:3")}));
  set_text(id, "Alice lives in Linz");
  FactPatch patch;
  patch.metadata = R"({"a":1})";
  unwrap(catalog().update_fact(kAlice, id, patch));
  EXPECT_TRUE(catalog().put_vectors({id, 3}, unit_vectors(2)).ok());
  unwrap(catalog().commit_record(entry(id, 10)));

  const EraseOutcome outcome = erase({id, id});
  EXPECT_EQ(outcome.facts, 1U);
  EXPECT_EQ(outcome.history, 2U);
  EXPECT_EQ(outcome.versions, 3U);
  EXPECT_EQ(outcome.vectors, 1U);
  EXPECT_EQ(outcome.keywords, 1U);
  EXPECT_EQ(outcome.turns, 1U) << "D1:2 is still cited, D1:3 never was";
  EXPECT_EQ(outcome.records, keys({10}));
  EXPECT_THAT(outcome.dependants, IsEmpty());
  EXPECT_TRUE(outcome.verified) << outcome.note;

  reopen();
  EXPECT_CODE(catalog().get_fact(kAlice, id), kNotFound);
  EXPECT_CODE(catalog().history(kAlice, id), kNotFound);
  EXPECT_THAT(found("lives Graz Linz"), IsEmpty());
  EXPECT_THAT(texts(kAlice), ElementsAre("Alice likes tea"));
  const std::vector<std::string> turn_ids = {"D1:1", "D1:2", "D1:3"};
  EXPECT_THAT(unwrap(catalog().get_turns(kAlice, turn_ids)), SizeIs(2));
  EXPECT_EQ(unwrap(catalog().counts_all()).vectors, 0U);
  EXPECT_THAT(unwrap(catalog().all_record_keys()), IsEmpty());
  EXPECT_EQ(erase({kept}).turns, 1U);
}

TEST_P(CatalogSuite, AnEraseRaisesTheEpochOfWhoseThingsGo) {
  const Scope bob = user_scope("bob");
  const std::string a = add("a");
  const std::string b = add("b");
  add("c", bob);
  EXPECT_EQ(unwrap(catalog().epoch("default", "alice")), 0U);

  EraseRequest dry;
  dry.scope = kAlice;
  dry.ids = {a};
  dry.dry_run = true;
  unwrap(catalog().erase(dry));
  EXPECT_EQ(unwrap(catalog().epoch("default", "alice")), 0U) << "nothing was erased";

  const EraseOutcome first = erase({a});
  ASSERT_THAT(first.owners, SizeIs(1));
  EXPECT_EQ(first.owners[0].tenant, "default");
  EXPECT_EQ(first.owners[0].user, "alice");
  EXPECT_EQ(first.owners[0].epoch, 1U);
  EXPECT_EQ(unwrap(catalog().erase_scope(user_scope("alice", "tutor"))).owners.size(), 0U);
  EXPECT_EQ(unwrap(catalog().erase_scope(kAlice)).owners.at(0).epoch, 2U);

  reopen();
  EXPECT_EQ(unwrap(catalog().epoch("default", "alice")), 2U) << "though nothing else is left";
  EXPECT_EQ(unwrap(catalog().epoch("default", "bob")), 0U);
  EXPECT_EQ(unwrap(catalog().epoch("acme", "alice")), 0U);
  EXPECT_EQ(unwrap(catalog().raise_epoch("acme", "alice")), 1U);
  EXPECT_EQ(unwrap(catalog().epoch("acme", "alice")), 1U);
}

TEST_P(CatalogSuite, ReplacedAndDroppedRecordsRaiseTheEpoch) {
  const std::string a = add("a");
  const auto epoch = [&] { return unwrap(catalog().epoch("default", "alice")); };
  unwrap(catalog().commit_record(entry(a, 10)));
  unwrap(catalog().commit_record(entry(a, 10)));
  EXPECT_EQ(epoch(), 0U) << "the same record again";
  unwrap(catalog().commit_record(entry(a, 20)));
  EXPECT_EQ(epoch(), 1U);
  unwrap(catalog().drop_records(keys({99})));
  EXPECT_EQ(epoch(), 1U) << "no such record";
  unwrap(catalog().drop_records(keys({20})));
  EXPECT_EQ(epoch(), 2U);
  set_text(a, "a, put differently");
  EXPECT_EQ(epoch(), 2U) << "an update erases nothing";
  EraseRequest old;
  old.scope = kAlice;
  old.ids = {a};
  old.old_versions = true;
  unwrap(catalog().erase(old));
  EXPECT_EQ(epoch(), 3U);
}

TEST_P(CatalogSuite, KeepTurnsKeepsThem) {
  NewFact item = fact("x");
  item.source_turns = {"D1:1"};
  unwrap(catalog().add_turns(std::vector{turn("D1:1"), turn("D1:1", user_scope("bob"))}));
  const std::string id = add(item).id;
  EXPECT_EQ(erase({id}, true).turns, 0U);
  EXPECT_EQ(erase({add(item).id}).turns, 1U);
  EXPECT_EQ(unwrap(catalog().counts(user_scope("bob"))).turns, 1U) << "same id, another scope";
}

TEST_P(CatalogSuite, NothingIsErasedWhenOneIdIsUnknown) {
  const std::string id = add("x");
  const auto result =
      catalog().erase_facts(kAlice, std::vector<std::string>{id, "f_none", "f_no"}, false);
  EXPECT_CODE(result, kNotFound);
  EXPECT_THAT(result.status().message(), ::testing::HasSubstr("f_none"));
  EXPECT_EQ(get(id).text, "x");
  EXPECT_CODE(catalog().erase_facts(user_scope("bob"), std::vector{id}, false), kNotFound);
}

TEST_P(CatalogSuite, ErasingAScopeLeavesNoTraceOfIt) {
  const Scope tutor = user_scope("alice", "tutor");
  add("plain");
  NewFact item = fact("tutor's", tutor);
  item.vectors = unit_vectors(1);
  add(item);
  add("bob's", user_scope("bob"));
  add("shared", Scope{"default", "", "", ""});
  unwrap(catalog().add_turns(std::vector{turn("D1:1", tutor), turn("D2:1")}));
  RecordEntry header;
  header.model_fingerprint = kModel;
  header.context = "prefix";
  header.key = RecordKey{hash_of(90)};
  header.scope = scope_hash(tutor);
  unwrap(catalog().commit_record(header));

  const EraseOutcome outcome = unwrap(catalog().erase_scope(tutor));
  EXPECT_EQ(outcome.facts, 1U);
  EXPECT_EQ(outcome.turns, 1U);
  EXPECT_EQ(outcome.records, keys({90})) << "header records of the scope go with it";
  EXPECT_TRUE(outcome.verified) << outcome.note;
  EXPECT_THAT(texts(kAlice), UnorderedElementsAre("plain", "shared"));

  EXPECT_EQ(unwrap(catalog().erase_scope(kAlice)).facts, 1U);
  EXPECT_EQ(unwrap(catalog().counts(kAlice)).scopes, 1U) << "the tenant's";
  EXPECT_THAT(texts(user_scope("bob")), UnorderedElementsAre("bob's", "shared"));
  EXPECT_EQ(unwrap(catalog().counts_all()).scopes, 2U);
  add("plain");
  EXPECT_THAT(found("plain"), SizeIs(1));
}

TEST_P(CatalogSuite, DependantsLoseTheirRecords) {
  const std::string a = add("a");
  const std::string b = add("b");
  const std::string c = add("c");
  const std::string d = add("d");
  unwrap(catalog().commit_record(entry(a, 10)));
  unwrap(catalog().commit_record(entry(b, 20, {a})));
  unwrap(catalog().commit_record(entry(c, 30, {b})));
  unwrap(catalog().commit_record(entry(d, 40)));
  EXPECT_THAT(unwrap(catalog().dependants_of(a)), SizeIs(1));

  const EraseOutcome outcome = erase({a});
  EXPECT_THAT(outcome.records, UnorderedElementsAre(keys({10})[0], keys({20})[0]));
  EXPECT_THAT(outcome.dependants, ElementsAre(FactRef{b, 1}));
  EXPECT_FALSE(record_of(b).has_value());
  EXPECT_TRUE(record_of(c).has_value()) << "c saw b's text, not what b saw";
  EXPECT_TRUE(record_of(d).has_value());
  EXPECT_THAT(to_encode(), ElementsAre(b));
}

TEST_P(CatalogSuite, InjectedKvCarriesWhatItSaw) {
  std::vector<std::string> ids;
  for (unsigned i = 0; i < 4; ++i) {  // a log: each behind the KV of the one before it
    ids.push_back(add("fact " + std::to_string(i)));
    RecordEntry next = entry(ids[i], 10 * (i + 1));
    if (i > 0) {
      next.attended_facts = {{ids[i - 1], 1}};
      next.attended_records = keys({10 * i});
    }
    unwrap(catalog().commit_record(next));
  }
  EXPECT_THAT(unwrap(catalog().dependants_of(ids[0])), SizeIs(3));
  // Encoding fact 1 again, behind nothing, does not change what fact 2 saw.
  EXPECT_EQ(unwrap(catalog().commit_record(entry(ids[1], 21))), keys({20})[0]);
  EXPECT_THAT(to_encode(), ElementsAre(ids[2])) << "its context was replaced";
  const EraseOutcome outcome = erase({ids[0]});
  EXPECT_THAT(outcome.records, UnorderedElementsAre(keys({10})[0], keys({30})[0], keys({40})[0]));
  EXPECT_THAT(outcome.dependants, ElementsAre(FactRef{ids[2], 1}, FactRef{ids[3], 1}));
  EXPECT_TRUE(record_of(ids[1]).has_value());
}

TEST_P(CatalogSuite, RecordsBehindErasedTurnsGo) {
  NewFact item = fact("a");
  item.source_turns = {"D1:1"};
  const std::string a = add(item).id;
  const std::string b = add("b");
  unwrap(catalog().add_turns(std::vector{turn("D1:1")}));
  RecordEntry behind = entry(b, 20);
  behind.attended_turns = {"D1:1"};
  unwrap(catalog().commit_record(behind));
  const EraseOutcome outcome = erase({a});
  EXPECT_EQ(outcome.turns, 1U);
  EXPECT_EQ(outcome.records, keys({20}));
  EXPECT_THAT(outcome.dependants, ElementsAre(FactRef{b, 1}));
}

TEST_P(CatalogSuite, ASharedRecordGoesForAllWhoUseIt) {
  const std::string a = add("a");
  const std::string b = add("b");
  unwrap(catalog().commit_record(entry(a, 10)));
  unwrap(catalog().commit_record(entry(b, 10)));  // same tokens, same context, same key
  const EraseOutcome outcome = erase({a});
  EXPECT_EQ(outcome.records, keys({10}));
  EXPECT_THAT(outcome.dependants, ElementsAre(FactRef{b, 1}));
  EXPECT_FALSE(record_of(b).has_value()) << "its bytes are about to be erased";
}

EraseRequest old_versions_of(std::vector<std::string> ids) {
  EraseRequest request;
  request.scope = kAlice;
  request.ids = std::move(ids);
  request.old_versions = true;
  return request;
}

TEST_P(CatalogSuite, OldVersionsGoWithTheRecordsThatSawThem) {
  NewFact item = fact("Alice lives in Graz");
  item.source_turns = {"D1:1"};
  item.vectors = unit_vectors(1);
  unwrap(catalog().add_turns(std::vector{turn("D1:1")}));
  const std::string a = add(item).id;
  const std::string saw_old = add("b");
  const std::string saw_new = add("c");
  const std::string apart = add("d");
  unwrap(catalog().commit_record(entry(a, 10)));
  unwrap(catalog().commit_record(entry(saw_old, 20, {a})));
  unwrap(catalog().commit_record(entry(apart, 40)));
  set_text(a, "Alice lives in Linz");
  unwrap(catalog().commit_record(entry(saw_new, 30, {a})));

  const EraseOutcome outcome = unwrap(catalog().erase(old_versions_of({a})));
  EXPECT_EQ(outcome.facts, 0U);
  EXPECT_EQ(outcome.history, 1U);
  EXPECT_EQ(outcome.versions, 1U);
  EXPECT_EQ(outcome.vectors, 0U);
  EXPECT_EQ(outcome.keywords, 0U);
  EXPECT_EQ(outcome.turns, 0U) << "the live version cites them";
  ASSERT_THAT(outcome.erased, SizeIs(1));
  EXPECT_EQ(outcome.erased[0].version, 2U);
  EXPECT_THAT(outcome.records, UnorderedElementsAre(keys({10})[0], keys({20})[0]));
  EXPECT_THAT(outcome.dependants, ElementsAre(FactRef{saw_old, 1}))
      << "the fact itself lost a record of a superseded version only";
  EXPECT_TRUE(outcome.verified) << outcome.note;
  reopen();
  EXPECT_EQ(get(a).text, "Alice lives in Linz");
  EXPECT_THAT(unwrap(catalog().history(kAlice, a)), SizeIs(1));
  EXPECT_THAT(found("Linz"), ElementsAre(a));
  EXPECT_THAT(found("Graz"), IsEmpty());
  EXPECT_TRUE(record_of(saw_new).has_value());
  EXPECT_TRUE(record_of(apart).has_value());
  EXPECT_THAT(to_encode(), ElementsAre(a, saw_old));
  EXPECT_EQ(unwrap(catalog().erase(old_versions_of({a}))).versions, 0U) << "nothing is left to go";
  EXPECT_CODE(catalog().erase(old_versions_of({"f_none"})), kNotFound);
}

TEST_P(CatalogSuite, OldVersionsReachWhatSawThemThroughInjectedKv) {
  const std::string a = add("a");
  const std::string b = add("b");
  const std::string c = add("c");
  unwrap(catalog().commit_record(entry(b, 20, {a})));
  RecordEntry chained = entry(c, 30);
  chained.attended_records = keys({20});
  unwrap(catalog().commit_record(chained));
  set_text(a, "a2");
  unwrap(catalog().commit_record(entry(b, 21, {a})));  // 20 is retired, c saw it
  const EraseOutcome outcome = unwrap(catalog().erase(old_versions_of({a})));
  EXPECT_EQ(outcome.records, keys({30}));
  EXPECT_THAT(outcome.dependants, ElementsAre(FactRef{c, 1}));
  EXPECT_TRUE(record_of(b).has_value());
}

TEST_P(CatalogFilters, ErasesWhatMatches) {
  EraseRequest request;
  request.scope = kAlice;
  request.filter = unwrap(parse_filter(R"({"n":{"gte":3}})"));
  add("shared", Scope{"default", "", "", ""});
  request.dry_run = true;
  const EraseOutcome counted = unwrap(catalog().erase(request));
  EXPECT_EQ(counted.facts, 2U);
  EXPECT_EQ(counted.keywords, 2U);
  EXPECT_FALSE(counted.verified);
  EXPECT_THAT(texts(kAlice), UnorderedElementsAre("a", "b", "c", "shared")) << "nothing went";
  EXPECT_THAT(found("b"), SizeIs(1));
  request.dry_run = false;
  const EraseOutcome outcome = unwrap(catalog().erase(request));
  EXPECT_EQ(outcome.facts, 2U);
  EXPECT_TRUE(outcome.verified) << outcome.note;
  EXPECT_THAT(texts(kAlice), UnorderedElementsAre("c", "shared"));
  EXPECT_EQ(unwrap(catalog().erase(request)).facts, 0U) << "again is no error";
  request.filter = Filter();
  EXPECT_EQ(unwrap(catalog().erase(request)).facts, 1U) << "what is shared stays";
}

TEST_P(CatalogSuite, KeepTurnsKeepsThoseOfAWholeScope) {
  NewFact item = fact("x");
  item.source_turns = {"D1:1"};
  add(item);
  unwrap(catalog().add_turns(std::vector{turn("D1:1"), turn("D1:2")}));
  EraseRequest request;
  request.scope = kAlice;
  request.whole_scope = true;
  request.keep_turns = true;
  EXPECT_EQ(unwrap(catalog().erase(request)).facts, 1U);
  EXPECT_EQ(unwrap(catalog().counts(kAlice)).turns, 2U);
  request.keep_turns = false;
  const EraseOutcome outcome = unwrap(catalog().erase(request));
  EXPECT_EQ(outcome.turns, 2U);
  EXPECT_TRUE(outcome.verified) << outcome.note;
  EXPECT_EQ(unwrap(catalog().counts_all()).scopes, 0U);
}

TEST_P(CatalogSuite, AnEraseSaysWhatItIsOf) {
  EraseRequest request;
  request.scope = kAlice;
  EXPECT_CODE(catalog().erase(request), kInvalidArgument) << "an empty list is not everything";
  request.ids = {add("x")};
  request.whole_scope = true;
  EXPECT_CODE(catalog().erase(request), kInvalidArgument);
  EXPECT_THAT(texts(kAlice), ElementsAre("x"));
}

}  // namespace
}  // namespace inferscale::testing
