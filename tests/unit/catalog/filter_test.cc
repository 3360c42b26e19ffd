#include "catalog/filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace inferscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Filter parsed(std::string_view json) {
  Result<Filter> filter = parse_filter(json);
  EXPECT_TRUE(filter.ok()) << json << ": " << filter.status().to_string();
  return filter.ok() ? *std::move(filter) : Filter();
}

std::string refusal(std::string_view json) {
  const Result<Filter> filter = parse_filter(json);
  EXPECT_FALSE(filter.ok()) << json;
  EXPECT_EQ(filter.status().code(), StatusCode::kInvalidArgument) << json;
  return filter.status().message();
}

TEST(Filter, AnEmptyObjectMatchesEverything) {
  EXPECT_EQ(parsed("{}").op, Filter::Op::kAll);
  EXPECT_EQ(Filter().op, Filter::Op::kAll);
}

TEST(Filter, AScalarMeansEquality) {
  const Filter filter = parsed(R"({"city":"Graz"})");
  EXPECT_EQ(filter.op, Filter::Op::kEq);
  EXPECT_EQ(filter.field, "city");
  EXPECT_THAT(filter.values, ElementsAre("\"Graz\""));
  EXPECT_THAT(parsed(R"({"n":1.5})").values, ElementsAre("1.5"));
  EXPECT_THAT(parsed(R"({"n":null})").values, ElementsAre("null"));
}

TEST(Filter, MembersOfAnObjectAreJoinedByAnd) {
  const Filter filter = parsed(R"({"a":1,"b":{"gte":2,"lt":3}})");
  EXPECT_EQ(filter.op, Filter::Op::kAnd);
  ASSERT_THAT(filter.children, SizeIs(2));
  EXPECT_EQ(filter.children[0].op, Filter::Op::kEq);
  EXPECT_EQ(filter.children[1].op, Filter::Op::kAnd);
  EXPECT_THAT(filter.children[1].children, SizeIs(2));
}

TEST(Filter, OperatorsByName) {
  EXPECT_EQ(parsed(R"({"a":{"ne":1}})").op, Filter::Op::kNe);
  EXPECT_EQ(parsed(R"({"a":{"icontains":"x"}})").op, Filter::Op::kIcontains);
  EXPECT_EQ(parsed(R"({"a":"*"})").op, Filter::Op::kExists);
  EXPECT_THAT(parsed(R"({"a":{"nin":[1,"x",true]}})").values, ElementsAre("1", "\"x\"", "true"));
  EXPECT_EQ(parsed(R"({"a":[1,2]})").op, Filter::Op::kIn);
  EXPECT_EQ(parsed(R"({"OR":[{"a":1},{"b":2}]})").op, Filter::Op::kOr);
  EXPECT_THAT(parsed(R"({"NOT":[{"a":1},{"b":2}]})").children, SizeIs(2));
  EXPECT_THAT(parsed(R"({"NOT":{"a":1}})").children, SizeIs(1));
}

TEST(Filter, RefusalsNameTheKeyAndWhatIsAccepted) {
  EXPECT_THAT(refusal(R"({"city":{"like":"x"}})"), HasSubstr("\"like\""));
  EXPECT_THAT(refusal(R"({"city":{"like":"x"}})"), HasSubstr("icontains"));
  EXPECT_THAT(refusal(R"({"city":{}})"), HasSubstr("city"));
  EXPECT_THAT(refusal(R"({"city":{"eq":{}}})"), HasSubstr("city"));
  EXPECT_THAT(refusal(R"({"city":{"in":"x"}})"), HasSubstr("list"));
  EXPECT_THAT(refusal(R"({"city":{"in":[]}})"), HasSubstr("list"));
  EXPECT_THAT(refusal(R"({"city":{"gt":true}})"), HasSubstr("number or a string"));
  EXPECT_THAT(refusal(R"({"city":{"icontains":3}})"), HasSubstr("city"));
  EXPECT_THAT(refusal(R"({"event_time":{"gt":"yesterday"}})"), HasSubstr("event_time"));
  EXPECT_THAT(refusal(R"({"event_time":{"contains":"2025"}})"), HasSubstr("time such as"));
  EXPECT_THAT(refusal(R"({"event_time":3})"), HasSubstr("event_time"));
  EXPECT_THAT(refusal(R"({"AND":[]})"), HasSubstr("AND"));
  EXPECT_THAT(refusal(R"({"OR":{"a":1}})"), HasSubstr("OR"));
  EXPECT_THAT(refusal(R"({"OR":["a"]})"), HasSubstr("objects"));
  EXPECT_THAT(refusal(R"({"":1})"), HasSubstr("empty"));
  EXPECT_THAT(refusal(R"({"a":1,"a":2})"), HasSubstr("twice"));
}

TEST(Filter, ScopeNamesAreRefused) {
  for (const char* name :
       {"user", "agent", "run", "tenant", "user_id", "agent_id", "run_id", "tenant_id"}) {
    EXPECT_THAT(refusal(nlohmann::json{{name, "x"}}.dump()), HasSubstr("scope"));
    const nlohmann::json inner = {{name, {{"ne", "x"}}}};
    EXPECT_THAT(refusal(nlohmann::json{{"OR", {{{"a", 1}}, inner}}}.dump()), HasSubstr("scope"));
  }
}

TEST(Filter, OnlyAnObjectIsAFilter) {
  for (const char* text : {"", "[]", "3", "null", "\"x\"", "{", "{\"a\":}", "{}x", "{'a':1}",
                           "{\"a\":1,}", "\xFF", "{\"a\":\"\xC3\x28\"}", "{\"a\":NaN}",
                           "{\"a\":1e999}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\\u0000\"}"}) {
    EXPECT_FALSE(refusal(text).empty());
  }
}

TEST(Filter, LimitsHold) {
  nlohmann::json deep = {{"a", 1}};
  for (int i = 0; i < 7; ++i) {
    deep = {{"NOT", deep}};
  }
  EXPECT_EQ(parsed(deep.dump()).op, Filter::Op::kNot);
  EXPECT_THAT(refusal(nlohmann::json{{"NOT", deep}}.dump()), HasSubstr("8 levels"));
  EXPECT_FALSE(refusal(std::string(5000, '[')).empty());

  nlohmann::json list = {{"a", nlohmann::json::array()}};
  for (int i = 0; i < 64; ++i) {
    list["a"].push_back(i);
  }
  EXPECT_THAT(parsed(list.dump()).values, SizeIs(64));
  list["a"].push_back(64);
  EXPECT_THAT(refusal(list.dump()), HasSubstr("64"));
  EXPECT_THAT(refusal(nlohmann::json{{"a", std::string(17000, 'x')}}.dump()), HasSubstr("16384"));
}

}  // namespace
}  // namespace inferscale
