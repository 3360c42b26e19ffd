// Facts, turns, vectors, search and deletion. Records: catalog_suite_records.cc.
#include "conformance/catalog_suite.h"

#include <algorithm>
#include <set>

namespace inferscale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CatalogSuite);

const Scope kAlice = user_scope("alice");
const Scope kBob = user_scope("bob");

TEST_P(CatalogSuite, KeepsEverythingOfAFact) {
  NewFact item = fact("Ålice wohnt in 東京 🗼");
  item.metadata = R"({ "city": "Graz", "n": 1.10 })";
  item.event_time = -62'135'596'800'000'000;  // the year 1
  item.event_offset_minutes = -90;
  item.source_turns = {"D1:2", "D1:1"};
  const AddOutcome outcome = add(item);
  EXPECT_FALSE(outcome.existed);
  reopen();
  const Fact kept = get(outcome.id);
  EXPECT_EQ(kept.id, outcome.id);
  EXPECT_EQ(kept.scope, kAlice);
  EXPECT_EQ(kept.version, 1U);
  EXPECT_EQ(kept.text, item.text);
  EXPECT_EQ(kept.metadata, item.metadata);  // byte for byte
  EXPECT_EQ(kept.event_time, item.event_time);
  EXPECT_EQ(kept.event_offset_minutes, -90);
  EXPECT_GT(kept.ingest_time, 0);
  EXPECT_THAT(kept.source_turns, ElementsAre("D1:2", "D1:1"));
}

TEST_P(CatalogSuite, ALongTextIsKeptWhole) {
  const std::string text = std::string(kMaxFactBytes - 3, 'x') + "\u2603";
  EXPECT_EQ(get(add(text)).text, text);
  EXPECT_CODE(catalog().add_facts(std::vector<NewFact>{fact(text + "y")}), kInvalidArgument);
}

TEST_P(CatalogSuite, IdsAreUniqueAndSequencesGrow) {
  std::set<std::string> ids;
  std::int64_t last = 0;
  for (int i = 0; i < 50; ++i) {
    const std::string id = add("fact " + std::to_string(i));
    EXPECT_TRUE(ids.insert(id).second);
    const std::int64_t sequence = get(id).sequence;
    EXPECT_GT(sequence, last);
    last = sequence;
  }
  erase({*ids.rbegin(), *ids.begin()});
  erase({ids.size() > 2 ? *std::next(ids.begin()) : ""});
  EXPECT_GT(get(add("one more")).sequence, last) << "a sequence is never given out twice";
}

TEST_P(CatalogSuite, AnExactDuplicateIsANoOp) {
  const AddOutcome first = add(fact("Alice likes tea"));
  const AddOutcome again = add(fact("Alice likes tea"));
  EXPECT_TRUE(again.existed);
  EXPECT_EQ(again.id, first.id);
  NewFact dated = fact("Alice likes tea");
  dated.event_time = 0;
  EXPECT_FALSE(add(dated).existed) << "another event time is another fact";
  EXPECT_FALSE(add(fact("Alice likes tea", kBob)).existed) << "and so is another scope";
  EXPECT_EQ(unwrap(catalog().counts(kAlice)).facts, 2U);
  erase({first.id});
  EXPECT_FALSE(add(fact("Alice likes tea")).existed) << "what was erased is no duplicate";
}

TEST_P(CatalogSuite, DuplicatesWithinABatchAreFound) {
  const std::vector<NewFact> batch = {fact("a"), fact("b"), fact("a")};
  const std::vector<AddOutcome> outcomes = unwrap(catalog().add_facts(batch));
  ASSERT_THAT(outcomes, SizeIs(3));
  EXPECT_TRUE(outcomes[2].existed);
  EXPECT_EQ(outcomes[2].id, outcomes[0].id);
  EXPECT_THAT(texts(kAlice), ElementsAre("a", "b"));
}

TEST_P(CatalogSuite, ABatchIsAllOrNothing) {
  std::vector<NewFact> batch = {fact("good"), fact("bad\nline")};
  const auto result = catalog().add_facts(batch);
  EXPECT_CODE(result, kInvalidArgument);
  EXPECT_THAT(result.status().message(), HasSubstr("facts[1].text"));
  EXPECT_THAT(texts(kAlice), IsEmpty());
  EXPECT_THAT(unwrap(catalog().add_facts({})), IsEmpty());
}

TEST_P(CatalogSuite, RefusesMalformedFacts) {
  const auto refused = [this](NewFact item, std::string_view field) {
    const auto result = catalog().add_facts(std::span(&item, 1));
    EXPECT_CODE(result, kInvalidArgument);
    EXPECT_THAT(result.status().message(), HasSubstr(std::string(field)));
  };
  refused(fact(""), "text");
  refused(fact("\xC3\x28"), "text");
  refused(fact(std::string("a\0b", 3)), "text");
  refused(fact("two\u2028lines"), "text");
  for (const char* metadata : {"", "[]", "3", "{", R"({"a":1,"a":2})", R"({"a":"\u0000"})"}) {
    NewFact item = fact("x");
    item.metadata = metadata;
    refused(item, "metadata");
  }
  NewFact deep = fact("x");
  deep.metadata = R"({"a":)" + std::string(40, '[') + std::string(40, ']') + "}";
  refused(deep, "metadata");
  NewFact large = fact("x");
  large.metadata = R"({"a":")" + std::string(kMaxMetadataBytes, 'a') + "\"}";
  refused(large, "metadata");
  NewFact offset = fact("x");
  offset.event_offset_minutes = 1440;
  refused(offset, "event_offset_minutes");
  NewFact time = fact("x");
  time.event_time = INT64_MAX;
  refused(time, "event_time");
  NewFact vectors = fact("x");
  vectors.vectors = unit_vectors(1);
  vectors.vectors.values[0] = NAN;
  refused(vectors, "vectors");
  NewFact ragged = fact("x");
  ragged.vectors = unit_vectors(1);
  ragged.vectors.values.pop_back();
  refused(ragged, "vectors");
  refused(fact("x", Scope{"default", "", "agent", ""}), "scope.user");
  refused(fact("x", user_scope(std::string(257, 'u'))), "scope.user");
}

TEST_P(CatalogSuite, MetadataNeverTouchesTheScope) {
  NewFact item = fact("x");
  item.metadata = R"({"user":"bob","user_id":"bob","tenant":"other","scope":{"user":"bob"}})";
  const std::string id = add(item).id;
  EXPECT_EQ(get(id).scope, kAlice);
  EXPECT_CODE(catalog().get_fact(kBob, id), kNotFound);
}

TEST_P(CatalogSuite, ScopesAreKeptApart) {
  const Scope tutor = user_scope("alice", "tutor", "r1");
  const Scope coach = user_scope("alice", "coach");
  const std::string shared = add("tenant fact", Scope{"default", "", "", ""});
  const std::string everyones = add("system fact", system_scope());
  const std::string plain = add("plain fact", kAlice);
  const std::string tutors = add("tutor fact", tutor);
  const std::string coaches = add("coach fact", coach);
  add("bob fact", kBob);
  add("foreign fact", Scope{"acme", "alice", "", ""});
  EXPECT_THAT(texts(kAlice), UnorderedElementsAre("tenant fact", "system fact", "plain fact",
                                                  "tutor fact", "coach fact"));
  EXPECT_THAT(texts(tutor), UnorderedElementsAre("tenant fact", "system fact", "tutor fact"));
  EXPECT_THAT(texts(user_scope("carol")), UnorderedElementsAre("tenant fact", "system fact"));
  EXPECT_THAT(texts(Scope{"acme", "carol", "", ""}), ElementsAre("system fact"));
  EXPECT_THAT(found("fact", tutor), UnorderedElementsAre(shared, everyones, tutors));
  EXPECT_CODE(catalog().get_fact(tutor, coaches), kNotFound);
  EXPECT_CODE(catalog().history(tutor, plain), kNotFound);
}

TEST_P(CatalogSuite, SharedFactsAreChangedInTheirOwnScopeOnly) {
  const Scope tenant{"default", "", "", ""};
  const std::string shared = add("tenant fact", tenant);
  FactPatch patch;
  patch.text = "changed";
  EXPECT_CODE(catalog().update_fact(kAlice, shared, patch), kPermissionDenied);
  EXPECT_CODE(catalog().erase_facts(kAlice, std::vector{shared}, false), kPermissionDenied);
  EXPECT_EQ(unwrap(catalog().erase_scope(kAlice)).facts, 0U);
  EXPECT_TRUE(catalog().update_fact(tenant, shared, patch).ok());
  EXPECT_EQ(unwrap(catalog().erase_scope(tenant)).facts, 1U);
}

TEST_P(CatalogSuite, GetFactsKeepsTheOrderAndLeavesOutWhatIsGone) {
  const std::string a = add("a");
  const std::string b = add("b");
  const std::vector<std::string> ids = {b, "f_none", add("bob's", kBob), a, b};
  std::vector<std::string> got;
  for (const Fact& item : unwrap(catalog().get_facts(kAlice, ids))) {
    got.push_back(item.text);
  }
  EXPECT_THAT(got, ElementsAre("b", "a", "b"));
}

TEST_P(CatalogSuite, PagesAreStableUnderWrites) {
  for (int i = 0; i < 25; ++i) {
    add("fact " + std::to_string(i), user_scope("alice", i % 2 == 0 ? "tutor" : "coach"));
  }
  std::vector<std::string> seen;
  std::string cursor;
  int page_number = 0;
  do {
    const FactPage page = unwrap(catalog().list_facts(kAlice, Filter(), 10, cursor));
    for (const Fact& item : page.facts) {
      seen.push_back(item.text);
    }
    cursor = page.next_cursor;
    if (page_number++ == 0) {  // rows before and after the cursor come and go
      unwrap(catalog().erase_facts(kAlice, std::vector{page.facts[3].id}, false));
      FactPatch patch;
      patch.text = "changed";
      unwrap(catalog().update_fact(kAlice, page.facts[4].id, patch));
      add("late");
    }
  } while (!cursor.empty());
  ASSERT_THAT(seen, SizeIs(26));
  EXPECT_EQ(seen.front(), "fact 0");
  EXPECT_EQ(seen[24], "fact 24");
  EXPECT_EQ(seen[25], "late");
  for (const char* bad : {"x", "s", "s-1", "s1x", "s99999999999999999999", "' OR 1=1 --"}) {
    EXPECT_CODE(catalog().list_facts(kAlice, Filter(), 10, bad), kInvalidArgument);
  }
  EXPECT_CODE(catalog().list_facts(kAlice, Filter(), 0, ""), kInvalidArgument);
}

TEST_P(CatalogSuite, AnEmptyCatalogAnswers) {
  EXPECT_THAT(texts(kAlice), IsEmpty());
  EXPECT_THAT(found("anything"), IsEmpty());
  EXPECT_THAT(unwrap(catalog().vectors(kAlice, "test/4")).values, IsEmpty());
  EXPECT_EQ(unwrap(catalog().counts_all()).facts, 0U);
  EXPECT_TRUE(unwrap(catalog().erase_scope(kAlice)).verified);
}

TEST_P(CatalogSuite, UpdatesMakeVersions) {
  const std::string id = add("Alice lives in Graz");
  const Fact first = get(id);
  FactPatch patch;
  patch.text = "Alice lives in Linz";
  patch.metadata = R"({"city":"Linz"})";
  patch.if_version = 1;
  const Fact second = unwrap(catalog().update_fact(kAlice, id, patch));
  EXPECT_EQ(second.version, 2U);
  EXPECT_EQ(second.sequence, first.sequence);
  EXPECT_CODE(catalog().update_fact(kAlice, id, patch), kConflict);
  reopen();
  EXPECT_EQ(get(id).text, "Alice lives in Linz");
  EXPECT_THAT(found("Graz"), IsEmpty()) << "superseded text is not found";
  EXPECT_THAT(found("Linz"), ElementsAre(id));
  const std::vector<FactVersion> versions = unwrap(catalog().history(kAlice, id));
  ASSERT_THAT(versions, SizeIs(2));
  EXPECT_EQ(versions[0].event, "ADD");
  EXPECT_EQ(versions[0].text, "Alice lives in Graz");
  EXPECT_EQ(versions[0].valid_from, first.ingest_time);
  EXPECT_EQ(versions[0].valid_to, versions[1].valid_from);
  EXPECT_EQ(versions[1].event, "UPDATE");
  EXPECT_EQ(versions[1].metadata, R"({"city":"Linz"})");
  EXPECT_FALSE(versions[1].valid_to.has_value());
}

TEST_P(CatalogSuite, AnUnchangedPatchWritesNothing) {
  NewFact item = fact("x");
  item.metadata = R"({"a":1,"b":2})";
  const std::string id = add(item).id;
  FactPatch patch;
  patch.text = "x";
  patch.metadata = R"({ "b":2, "a":1 })";
  EXPECT_EQ(unwrap(catalog().update_fact(kAlice, id, patch)).version, 1U);
  EXPECT_THAT(unwrap(catalog().history(kAlice, id)), SizeIs(1));
}

TEST_P(CatalogSuite, UpdatesAreRefusedForAReason) {
  const std::string id = add("x");
  add("taken");
  FactPatch patch;
  patch.text = "taken";
  EXPECT_CODE(catalog().update_fact(kAlice, id, patch), kConflict);
  EXPECT_CODE(catalog().update_fact(kBob, id, patch), kNotFound);
  EXPECT_CODE(catalog().update_fact(kAlice, "f_none'--", patch), kNotFound);
  patch.text = "";
  EXPECT_CODE(catalog().update_fact(kAlice, id, patch), kInvalidArgument);
}

TEST_P(CatalogSuite, TurnsAreKeptOnce) {
  Turn turn{"D1:1", kAlice, "Alice", "user", "line one\nline two", 5, 60};
  EXPECT_EQ(unwrap(catalog().add_turns(std::vector{turn, turn})), 1U);
  turn.text = "changed";
  EXPECT_EQ(unwrap(catalog().add_turns(std::vector{turn})), 0U);
  reopen();
  const std::vector<std::string> ids = {"D9:9", "D1:1"};
  const std::vector<Turn> turns = unwrap(catalog().get_turns(kAlice, ids));
  ASSERT_THAT(turns, SizeIs(1));
  EXPECT_EQ(turns[0].text, "line one\nline two");
  EXPECT_EQ(turns[0].event_offset_minutes, 60);
  EXPECT_THAT(unwrap(catalog().get_turns(kBob, ids)), IsEmpty());
  turn.id = "";
  EXPECT_CODE(catalog().add_turns(std::vector{turn}), kInvalidArgument);
}

TEST_P(CatalogSuite, FactsBeforeAreOfExactlyTheScope) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(add("fact " + std::to_string(i)));
    add("other " + std::to_string(i), user_scope("alice", "tutor"));
  }
  std::vector<std::string> got;
  for (const Fact& item : unwrap(catalog().facts_before(kAlice, get(ids[4]).sequence, 3))) {
    got.push_back(item.text);
  }
  EXPECT_THAT(got, ElementsAre("fact 1", "fact 2", "fact 3"));
  EXPECT_THAT(unwrap(catalog().facts_before(kAlice, 0, 3)), IsEmpty());
}

TEST_P(CatalogSuite, SettingsAreReplaced) {
  EXPECT_FALSE(unwrap(catalog().get_setting("top_j")).has_value());
  EXPECT_TRUE(catalog().put_setting("top_j", "4").ok());
  EXPECT_TRUE(catalog().put_setting("top_j", "8").ok());
  reopen();
  EXPECT_EQ(unwrap(catalog().get_setting("top_j")), "8");
  EXPECT_CODE(catalog().put_setting("", "x"), kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::testing
