// What encode contexts ask of a catalog: turns before a turn, speakers, nearest facts, and the
// records that the facts of a scope share.
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Scope kAlice = user_scope("alice");
const Scope kTutor = user_scope("alice", "tutor");

Turn turn(std::string id, std::string speaker, const Scope& scope = kAlice) {
  return {std::move(id), scope, std::move(speaker), "user", "words", 0, 0};
}

std::vector<std::string> ids_of(const std::vector<Turn>& turns) {
  std::vector<std::string> ids;
  for (const Turn& item : turns) {
    ids.push_back(item.id);
  }
  return ids;
}

std::vector<std::string> texts_of(const std::vector<Fact>& facts) {
  std::vector<std::string> texts;
  for (const Fact& item : facts) {
    texts.push_back(item.text);
  }
  return texts;
}

TEST_P(CatalogSuite, TurnsBeforeAreOfExactlyTheScopeInTheOrderOfWriting) {
  unwrap(catalog().add_turns(std::vector{turn("z", "Ana"), turn("y", "Bob"), turn("x", "Ana"),
                                         turn("x", "Ana", kTutor), turn("w", "Ana")}));
  EXPECT_THAT(ids_of(unwrap(catalog().turns_before(kAlice, "w", 2))), ElementsAre("y", "x"));
  EXPECT_THAT(ids_of(unwrap(catalog().turns_before(kAlice, "w", 9))), ElementsAre("z", "y", "x"));
  EXPECT_THAT(unwrap(catalog().turns_before(kAlice, "w", 0)), IsEmpty());
  EXPECT_THAT(unwrap(catalog().turns_before(kAlice, "z", 9)), IsEmpty());
  EXPECT_THAT(unwrap(catalog().turns_before(kAlice, "gone", 9)), IsEmpty());
  EXPECT_THAT(unwrap(catalog().turns_before(kTutor, "w", 9)), IsEmpty());
  EXPECT_THAT(unwrap(catalog().turns_before(user_scope("bob"), "w", 9)), IsEmpty());
  EXPECT_EQ(unwrap(catalog().turns_before(kAlice, "y", 1)).front().speaker, "Ana");
}

TEST_P(CatalogSuite, SpeakersAreTheMostFrequentInTheOrderOfTheirFirstWord) {
  EXPECT_THAT(unwrap(catalog().speakers(kAlice, 2)), IsEmpty());
  unwrap(catalog().add_turns(std::vector{turn("1", "Zoe"), turn("2", "Ana"), turn("3", ""),
                                         turn("4", ""), turn("5", ""), turn("6", "Bob"),
                                         turn("7", "Bob"), turn("8", "Ana"), turn("9", "Bob"),
                                         turn("1", "Tim", kTutor)}));
  EXPECT_THAT(unwrap(catalog().speakers(kAlice, 2)), ElementsAre("Ana", "Bob"));
  EXPECT_THAT(unwrap(catalog().speakers(kAlice, 9)), ElementsAre("Zoe", "Ana", "Bob"));
  EXPECT_THAT(unwrap(catalog().speakers(kTutor, 1)), ElementsAre("Tim"));
  EXPECT_THAT(unwrap(catalog().speakers(user_scope("bob"), 2)), IsEmpty());
}

TEST_P(CatalogSuite, SpeakersAmongEqualsAreThoseWhoSpokeFirst) {
  unwrap(catalog().add_turns(std::vector{turn("1", "Zoe"), turn("2", "Ana"), turn("3", "Bob")}));
  EXPECT_THAT(unwrap(catalog().speakers(kAlice, 2)), ElementsAre("Zoe", "Ana"));
}

TEST_P(CatalogSuite, NearestFactsAreOfTheScopeInIngestOrder) {
  const auto with = [this](std::string text, float angle, const Scope& scope = kAlice) {
    NewFact item = fact(std::move(text), scope);
    item.vectors = {"test/2", 2, {std::cos(angle), std::sin(angle)}};
    return add(item).id;
  };
  with("far", 1.5F);
  const std::string near = with("near", 0.1F);
  const std::string self = with("self", 0.0F);
  add("without");
  with("nearest", 0.05F);
  with("foreign", 0.0F, kTutor);
  const auto nearest = [&](const std::string& id, std::size_t n) {
    return texts_of(unwrap(catalog().nearest_facts({id, 1}, n)));
  };
  EXPECT_THAT(nearest(self, 1), ElementsAre("near"));
  EXPECT_THAT(nearest(self, 9), ElementsAre("far", "near")) << "not those that came later";
  EXPECT_THAT(nearest(self, 0), IsEmpty());
  EXPECT_THAT(unwrap(catalog().nearest_facts({self, 2}, 9)), IsEmpty()) << "no such version";
  EXPECT_THAT(unwrap(catalog().nearest_facts({"gone", 1}, 9)), IsEmpty());
  erase({near});
  EXPECT_THAT(nearest(self, 1), ElementsAre("far"));
}

TEST_P(CatalogSuite, NearestFactsCompareTheBestChunksOfOneModel) {
  NewFact other_model = fact("another model");
  other_model.vectors = unit_vectors(1, 0, "other/4");
  add(other_model);
  NewFact far = fact("axis 3");
  far.vectors = unit_vectors(1, 3);
  add(far);
  NewFact near = fact("axis 1");
  near.vectors = unit_vectors(1, 1);
  add(near);
  NewFact two = fact("two chunks");
  two.vectors = unit_vectors(2, 0);  // axes 0 and 1
  const std::string id = add(two).id;
  EXPECT_THAT(texts_of(unwrap(catalog().nearest_facts({id, 1}, 1))), ElementsAre("axis 1"));
  EXPECT_THAT(texts_of(unwrap(catalog().nearest_facts({id, 1}, 9))),
              ElementsAre("axis 3", "axis 1"));
  ASSERT_TRUE(catalog().put_vectors({id, 1}, unit_vectors(1, 0, "other/4")).ok());
  EXPECT_THAT(texts_of(unwrap(catalog().nearest_facts({id, 1}, 9))), ElementsAre("another model"))
      << "the vectors that were written last";
}

TEST_P(CatalogSuite, SharedRecordsOfAScopeGoWithItsLastFact) {
  const std::string a = add("a");
  const std::string b = add("b");
  RecordEntry shared;
  shared.model_fingerprint = kModel;
  shared.context = "names";
  shared.key = RecordKey{hash_of(50)};
  shared.context_id = hash_of(51);
  shared.scope = scope_hash(kAlice);
  shared.n_tokens = 9;
  unwrap(catalog().commit_record(shared));
  unwrap(catalog().commit_record(entry(a, 10)));
  const auto keys = [&](const Scope& scope, std::string_view context) {
    return unwrap(catalog().shared_records(scope_hash(scope), kModel, context));
  };
  EXPECT_THAT(keys(kAlice, "names"), ElementsAre(shared.key));
  EXPECT_THAT(keys(kAlice, "prefix"), IsEmpty());
  EXPECT_THAT(keys(kTutor, "names"), IsEmpty());
  EXPECT_THAT(unwrap(catalog().shared_records(scope_hash(kAlice), hash_of(1), "names")), IsEmpty());
  EXPECT_THAT(erase({a}).records, ElementsAre(RecordKey{hash_of(10)}));
  EXPECT_THAT(keys(kAlice, "names"), ElementsAre(shared.key));
  EXPECT_THAT(erase({b}).records, ElementsAre(shared.key));
  EXPECT_THAT(keys(kAlice, "names"), IsEmpty());
}

TEST_P(CatalogSuite, OutdatedRecordsAreUsableUntilTheyAreReplaced) {
  const std::string a = add("a");
  const std::string b = add("b");
  unwrap(catalog().commit_record(entry(a, 10)));
  unwrap(catalog().commit_record(entry(b, 20)));
  EXPECT_THAT(to_encode(), IsEmpty());
  EXPECT_FALSE(record_of(a)->stale);
  EXPECT_EQ(unwrap(catalog().outdate_records(hash_of(1))), 0U);
  EXPECT_EQ(unwrap(catalog().outdate_records(kModel)), 2U);
  EXPECT_EQ(unwrap(catalog().outdate_records(kModel)), 0U);
  EXPECT_THAT(to_encode(), ElementsAre(a, b));
  EXPECT_TRUE(record_of(a)->stale);
  unwrap(catalog().commit_record(entry(a, 10)));
  EXPECT_FALSE(record_of(a)->stale);
  EXPECT_THAT(to_encode(), ElementsAre(b));
}

}  // namespace
}  // namespace inferscale::testing
