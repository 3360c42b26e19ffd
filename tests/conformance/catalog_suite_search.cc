// Vectors, keyword search and filters.
#include <algorithm>

#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const Scope kAlice = user_scope("alice");

TEST_P(CatalogSuite, VectorsComeBackByChunk) {
  NewFact one = fact("one");
  one.vectors = unit_vectors(1, 0);
  NewFact three = fact("three chunks");
  three.vectors = unit_vectors(3, 1);
  const std::string first = add(one).id;
  const std::string second = add(three).id;
  add("none");
  const VectorRows rows = unwrap(catalog().vectors(kAlice, "test/4"));
  EXPECT_EQ(rows.dim, 4U);
  EXPECT_THAT(rows.fact_ids, ElementsAre(first, second, second, second));
  std::vector<float> expected = one.vectors.values;
  expected.insert(expected.end(), three.vectors.values.begin(), three.vectors.values.end());
  EXPECT_EQ(rows.values, expected);
  EXPECT_THAT(unwrap(catalog().vectors(kAlice, "other/4")).values, IsEmpty());
  EXPECT_THAT(unwrap(catalog().vectors(user_scope("bob"), "test/4")).values, IsEmpty());
}

TEST_P(CatalogSuite, MissingVectorsAreAddedToTheLiveVersionOnly) {
  const std::string id = add("one");
  const std::string other = add("two");
  const std::vector<Fact> missing = unwrap(catalog().facts_without_vectors("test/4", 10));
  ASSERT_THAT(missing, SizeIs(2));
  EXPECT_THAT(unwrap(catalog().facts_without_vectors("test/4", 1)), SizeIs(1));
  set_text(other, "changed");
  EXPECT_TRUE(catalog().put_vectors({id, 1}, unit_vectors(1)).ok());
  EXPECT_TRUE(catalog().put_vectors({other, 1}, unit_vectors(1)).ok()) << "skipped";
  EXPECT_TRUE(catalog().put_vectors({"f_none", 1}, unit_vectors(1)).ok()) << "skipped";
  EXPECT_THAT(unwrap(catalog().vectors(kAlice, "test/4")).fact_ids, ElementsAre(id));
  EXPECT_EQ(unwrap(catalog().facts_without_vectors("test/4", 10)).front().id, other);
  EXPECT_CODE(catalog().put_vectors({id, 1}, TextVectors{}), kInvalidArgument);
}

TEST_P(CatalogSuite, ADimensionIsFixedPerEmbedder) {
  const std::string id = add("one");
  EXPECT_TRUE(catalog().put_vectors({id, 1}, unit_vectors(1)).ok());
  const TextVectors other{"test/4", 2, {1.0F, 0.0F}};
  EXPECT_CODE(catalog().put_vectors({add("two"), 1}, other), kInvalidArgument);
}

TEST_P(CatalogSuite, AnUpdateReplacesVectors) {
  NewFact item = fact("one");
  item.vectors = unit_vectors(2);
  const std::string id = add(item).id;
  FactPatch patch;
  patch.metadata = R"({"a":1})";
  unwrap(catalog().update_fact(kAlice, id, patch));
  EXPECT_THAT(unwrap(catalog().vectors(kAlice, "test/4")).fact_ids, SizeIs(2)) << "same text";
  patch.text = "two";
  patch.vectors = unit_vectors(1, 3);
  unwrap(catalog().update_fact(kAlice, id, patch));
  EXPECT_EQ(unwrap(catalog().vectors(kAlice, "test/4")).values, unit_vectors(1, 3).values);
  set_text(id, "three");
  EXPECT_THAT(unwrap(catalog().vectors(kAlice, "test/4")).values, IsEmpty());
}

TEST_P(CatalogSuite, KeywordSearchRanksByTheWordsThatTellMost) {
  const std::string sunrise = add("Caroline painted a sunrise over the lake");
  const std::string dinner = add("Caroline cooked dinner");
  add("Melanie went to the lake");
  EXPECT_THAT(found("When did Caroline paint the sunrise?"), ElementsAre(sunrise, dinner));
  EXPECT_THAT(found("PAINTINGS"), ElementsAre(sunrise)) << "case and word endings do not count";
  EXPECT_THAT(found("what is it"), IsEmpty());
  EXPECT_THAT(found("the"), SizeIs(2)) << "function words count where there is nothing else";
  const std::vector<KeywordHit> hits = unwrap(catalog().keyword_search(kAlice, "Caroline lake", 2));
  ASSERT_THAT(hits, SizeIs(2));
  EXPECT_EQ(hits[0].fact_id, sunrise);
  EXPECT_GT(hits[0].score, hits[1].score);
  EXPECT_GT(hits[1].score, 0);
  EXPECT_THAT(unwrap(catalog().keyword_search(kAlice, "lake", 0)), IsEmpty());
}

TEST_P(CatalogSuite, ScoresDoNotDependOnOtherPeoplesFacts) {
  const std::string id = add("Caroline painted a sunrise");
  const double before = unwrap(catalog().keyword_search(kAlice, "sunrise", 1)).front().score;
  for (int i = 0; i < 20; ++i) {
    add("sunrise " + std::to_string(i), user_scope("bob"));
  }
  EXPECT_THAT(found("sunrise"), ElementsAre(id));
  EXPECT_EQ(unwrap(catalog().keyword_search(kAlice, "sunrise", 1)).front().score, before);
}

TEST_P(CatalogSuite, KeywordSearchWorksInAnyScript) {
  const std::string japanese = add("花子の猫の名前はミケだ");
  const std::string chinese = add("小明在北京的一家公司做程序员");
  const std::string thai = add("แมวของฉันชื่อมะลิ");
  const std::string korean = add("고양이를 키우고 있다");
  const std::string hindi = add("मेरी बिल्ली का नाम मीनू है");
  const std::string polish = add("Kasia kupiła żółte okulary na święta");
  const std::string greek = add("Η Ελένη μένει στην Αθήνα");
  const std::string arabic = add("تعيش ليلى في القاهرة");
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"猫", japanese},   {"名前は何", japanese}, {"北京", chinese},  {"แมวชื่ออะไร", thai},
      {"고양이", korean}, {"बिल्ली", hindi},       {"swieta", polish}, {"ŻÓŁTE", polish},
      {"ΑΘΉΝΑ", greek},   {"القاهرة", arabic},
  };
  for (const auto& [query, expected] : cases) {
    const std::vector<std::string> ids = found(query);
    ASSERT_FALSE(ids.empty()) << query;
    EXPECT_EQ(ids.front(), expected) << query;
  }
}

TEST_P(CatalogSuite, AnyTextIsAQueryAndNoneIsSyntax) {
  const std::string id = add("near and or not text tenant NEAR");
  for (const char* query : {"\"",
                            "''",
                            "*",
                            "text:",
                            "-text",
                            "^text",
                            "{text}:",
                            "text AND",
                            "OR",
                            "NOT",
                            "NEAR(",
                            "(",
                            ")",
                            "a OR b)",
                            "\"text",
                            "text\"; DROP TABLE facts; --",
                            "' OR 1=1 --",
                            "%",
                            "\\",
                            "keywords MATCH 'x'",
                            "text* + text",
                            "\x1f",
                            "1\x1ftext",
                            "🗼🗼",
                            "{",
                            "rank",
                            ""}) {
    EXPECT_TRUE(catalog().keyword_search(kAlice, query, 10).ok()) << query;
  }
  EXPECT_THAT(found("text*\" OR (x"), ElementsAre(id));
  EXPECT_THAT(found("1\x1ftext"), ElementsAre(id)) << "an owner prefix is no syntax either";
  EXPECT_THAT(found(std::string_view("zero\0text", 9)), ElementsAre(id));
  EXPECT_THAT(found("broken \xC3\x28 \xFF text \xE4\xBD"), ElementsAre(id));
}

TEST_P(CatalogSuite, AHugeQueryIsBounded) {
  const std::string id = add("needle in a haystack");
  std::string query = "needle ";
  while (query.size() < (1U << 20)) {
    query += "word" + std::to_string(query.size()) + " ";
  }
  EXPECT_THAT(found(query), ElementsAre(id));
  EXPECT_THAT(found(std::string(1U << 20, 'x')), IsEmpty());
  EXPECT_THAT(found(std::string(1U << 20, '"')), IsEmpty());
  std::string repeated;
  while (repeated.size() < (1U << 20)) {
    repeated += "the needle ";  // two terms, however often
  }
  EXPECT_THAT(found(repeated), ElementsAre(id));
}

TEST_P(CatalogSuite, LongWordsAreFoundAsTheyAreIndexed) {
  const std::string word(5000, 'q');
  const std::string id = add("a very long word: " + word);
  EXPECT_THAT(found(word), ElementsAre(id));
  EXPECT_EQ(erase({id}).keywords, 1U);
  EXPECT_THAT(found(word), IsEmpty());
}

TEST_P(CatalogFilters, Operators) {
  EXPECT_THAT(matching("{}"), ElementsAre(a_, b_, c_));
  EXPECT_THAT(matching(R"({"city":"Graz"})"), ElementsAre(a_));
  EXPECT_THAT(matching(R"({"city":null})"), ElementsAre(c_));
  EXPECT_THAT(matching(R"({"city":{"ne":"Graz"}})"), ElementsAre(b_, c_));
  EXPECT_THAT(matching(R"({"n":3})"), ElementsAre(a_)) << "3 is not \"3\"";
  EXPECT_THAT(matching(R"({"n":3.0})"), ElementsAre(a_));
  EXPECT_THAT(matching(R"({"n":"3"})"), ElementsAre(c_));
  EXPECT_THAT(matching(R"({"n":{"gt":3}})"), ElementsAre(b_));
  EXPECT_THAT(matching(R"({"n":{"gte":3,"lt":3.5}})"), ElementsAre(a_));
  EXPECT_THAT(matching(R"({"ok":true})"), ElementsAre(a_));
  EXPECT_THAT(matching(R"({"ok":1})"), IsEmpty()) << "true is not 1";
  EXPECT_THAT(matching(R"({"city":{"in":["Graz","Linz",null]}})"), ElementsAre(a_, c_));
  EXPECT_THAT(matching(R"({"city":["Graz"]})"), ElementsAre(a_)) << "a list is short for in";
  EXPECT_THAT(matching(R"({"city":{"nin":["Graz"]}})"), ElementsAre(b_, c_));
  EXPECT_THAT(matching(R"({"nothing":{"nin":["Graz"]}})"), ElementsAre(a_, b_, c_));
  EXPECT_THAT(matching(R"({"city":{"contains":"ra"}})"), ElementsAre(a_));
  EXPECT_THAT(matching(R"({"city":{"icontains":"ŁÓD"}})"), ElementsAre(b_));
  EXPECT_THAT(matching(R"({"tags":{"contains":"y"}})"), ElementsAre(a_, b_));
  EXPECT_THAT(matching(R"({"tags":{"contains":2}})"), ElementsAre(b_));
  EXPECT_THAT(matching(R"({"ok":"*"})"), ElementsAre(a_, b_));
}

TEST_P(CatalogFilters, Logic) {
  EXPECT_THAT(matching(R"({"city":"Graz","n":4})"), IsEmpty());
  EXPECT_THAT(matching(R"({"OR":[{"city":"Graz"},{"n":"3"}]})"), ElementsAre(a_, c_));
  EXPECT_THAT(matching(R"({"NOT":{"city":"Graz"}})"), ElementsAre(b_, c_));
  EXPECT_THAT(matching(R"({"NOT":[{"city":"Graz"},{"n":"3"}]})"), ElementsAre(b_));
  EXPECT_THAT(matching(R"({"AND":[{"n":{"gte":3}},{"OR":[{"ok":true},{"NOT":{"ok":"*"}}]}]})"),
              ElementsAre(a_));
}

TEST_P(CatalogFilters, Times) {
  EXPECT_THAT(matching(R"({"event_time":{"lt":"1970-01-02"}})"), ElementsAre(a_));
  EXPECT_THAT(matching(R"({"event_time":"1970-01-01T01:00:00+01:00"})"), ElementsAre(a_));
  EXPECT_THAT(matching(R"({"event_time":{"ne":"1970-01-01"}})"), ElementsAre(b_, c_));
  EXPECT_THAT(matching(R"({"NOT":{"event_time":{"gte":"1970-01-02"}}})"), ElementsAre(a_, c_));
  EXPECT_THAT(matching(R"({"event_time":"*"})"), ElementsAre(a_, b_));
  EXPECT_THAT(matching(R"({"ingest_time":{"gt":"2020-01-01"}})"), ElementsAre(a_, b_, c_));
}

TEST_P(CatalogFilters, HostileKeysAndValuesAreData) {
  EXPECT_THAT(matching(R"({"o'k\"":1})"), ElementsAre(c_));
  EXPECT_THAT(matching(R"({"$.a.b":"path"})"), ElementsAre(c_));
  for (const char* hostile :
       {R"({"x') OR 1=1 --":1})", R"({"city":"' OR '1'='1"})", R"({"$":{"in":["$"]}})",
        R"({"$.city":"Graz"})", R"({"\"]":{"contains":"%"}})", R"({"?1":"?2"})",
        R"({"city":{"icontains":"'); DROP TABLE facts; --"}})"}) {
    EXPECT_THAT(matching(hostile), IsEmpty()) << hostile;
  }
  EXPECT_THAT(texts(kAlice), ElementsAre("a", "b", "c"));
}

TEST_P(CatalogFilters, ListsAndPagesUseThem) {
  const Filter filter = unwrap(parse_filter(R"({"n":{"gte":3}})"));
  const FactPage page = unwrap(catalog().list_facts(kAlice, filter, 1, ""));
  ASSERT_THAT(page.facts, SizeIs(1));
  EXPECT_EQ(page.facts[0].id, a_);
  const FactPage next = unwrap(catalog().list_facts(kAlice, filter, 1, page.next_cursor));
  ASSERT_THAT(next.facts, SizeIs(1));
  EXPECT_EQ(next.facts[0].id, b_);
  EXPECT_EQ(next.next_cursor, "");
}

TEST_P(CatalogFilters, FiltersBuiltInCodeAreCheckedToo) {
  const auto refused = [this](const Filter& filter) {
    EXPECT_CODE(catalog().matching_ids(kAlice, filter), kInvalidArgument);
  };
  refused({Filter::Op::kEq, "a", {}, {}});
  refused({Filter::Op::kEq, "a", {"{}"}, {}});
  refused({Filter::Op::kEq, "a", {"not json"}, {}});
  refused({Filter::Op::kGt, "a", {"true"}, {}});
  refused({Filter::Op::kIcontains, "a", {"3"}, {}});
  refused({Filter::Op::kLt, "event_time", {"\"yesterday\""}, {}});
  Filter deep;
  for (int i = 0; i < 50; ++i) {
    deep = Filter{Filter::Op::kNot, "", {}, {deep}};
  }
  refused(deep);
}

}  // namespace
}  // namespace inferscale::testing
