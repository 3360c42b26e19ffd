#include "cli/import/import_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/split_text.h"
#include "cli/import/json_slices.h"

namespace inferscale {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

ImportBatch import_ok(std::string_view bytes, const ImportOptions& options = {}) {
  Result<ImportBatch> batch = parse_import(bytes, options);
  EXPECT_TRUE(batch.ok()) << batch.status().to_string();
  return batch.ok() ? *batch : ImportBatch{};
}

Status import_error(std::string_view bytes, const ImportOptions& options = {}) {
  return parse_import(bytes, options).status();
}

TEST(JsonSlices, CutsArraysAndObjects) {
  EXPECT_THAT(*json_elements(" [1, \"a,]\" ,{\"b\":[2]}, [] ] "),
              ElementsAre("1", "\"a,]\"", "{\"b\":[2]}", "[]"));
  EXPECT_THAT(*json_elements("[]"), IsEmpty());
  const auto members = json_members(R"({"a\"b" : 1, "c":{"d":null}})");
  ASSERT_TRUE(members.ok());
  ASSERT_THAT(*members, SizeIs(2));
  EXPECT_EQ(members->at(0).key, "a\\\"b");
  EXPECT_EQ(members->at(1).value, "{\"d\":null}");
}

TEST(JsonSlices, RefusesWhatIsNoJson) {
  for (const char* text :
       {"", "[", "[1", "[1,", "[1 2]", "{]", "[}", "[1]]", "[1] x", "[\"a", "[,1]", "[1,]"}) {
    EXPECT_FALSE(json_elements(text).ok()) << text;
  }
  for (const char* text : {"{\"a\"}", "{\"a\":}", "{a:1}", "{\"a\":1,}", "{\"a\" 1}"}) {
    EXPECT_FALSE(json_members(text).ok()) << text;
  }
}

TEST(JsonSlices, BoundsTheDepth) {
  const std::string inside = std::string(63, '[') + std::string(63, ']');
  EXPECT_TRUE(json_elements("[" + inside + "]").ok());
  const Result<std::vector<std::string_view>> deep = json_elements("[[" + inside + "]]");
  ASSERT_FALSE(deep.ok());
  EXPECT_THAT(deep.status().message(), HasSubstr("64 levels"));
  EXPECT_FALSE(parse_json_item(std::string(1'000'000, '[')).ok());
}

TEST(ImportOpenAi, ReadsArrayObjectAndLinesAlike) {
  const std::string one = R"({"role":"user","content":"I moved to Graz."})";
  const std::string two = R"({"role":"assistant","content":"Nice."})";
  for (const std::string& text :
       {"[" + one + "," + two + "]", "{\"messages\":[" + one + "," + two + "]}",
        "\xEF\xBB\xBF" + one + "\r\n\n" + two + "\n"}) {
    const ImportBatch batch = import_ok(text);
    EXPECT_EQ(batch.format, ImportFormat::kOpenAi);
    ASSERT_THAT(batch.turns, SizeIs(2)) << text;
    EXPECT_EQ(batch.turns[0].speaker, "User");
    ASSERT_THAT(batch.facts, SizeIs(1));
    EXPECT_EQ(batch.facts[0].text, "User: I moved to Graz.");
    EXPECT_THAT(batch.facts[0].source_turns, ElementsAre(batch.turns[0].id));
  }
}

TEST(ImportOpenAi, NamedTurnsAllBecomeFacts) {
  const ImportBatch batch = import_ok(R"([
    {"role":"system","name":"Host","content":"Be kind."},
    {"role":"user","name":"Mara","content":"I bought a banjo.","time":"2025-02-03T09:00:00+01:00"},
    {"role":"assistant","name":"Teo","content":[{"type":"text","text":"A banjo?"},
                                                {"type":"text","text":"Really?"}],
     "timestamp":1738573200},
    {"role":"tool","content":"42"}])");
  ASSERT_THAT(batch.turns, SizeIs(4));
  ASSERT_THAT(batch.facts, SizeIs(2));
  EXPECT_EQ(batch.facts[0].text, "Mara: I bought a banjo.");
  EXPECT_EQ(batch.facts[0].event_time, "2025-02-03T09:00:00+01:00");
  EXPECT_EQ(batch.facts[1].text, "Teo: A banjo? Really?");
  EXPECT_EQ(batch.facts[1].event_time, "2025-02-03T09:00:00Z");
}

TEST(ImportOpenAi, MadeUpIdsAreStable) {
  const std::string one = R"({"role":"user","content":"a"})";
  const std::string two = R"({"role":"user","content":"b"})";
  const ImportBatch shorter = import_ok("[" + one + "]");
  const ImportBatch longer = import_ok("[" + one + "," + two + "]");
  EXPECT_EQ(shorter.turns[0].id, longer.turns[0].id);
  EXPECT_THAT(longer.turns[1].id, testing::MatchesRegex("t000001-[0-9a-f]{8}"));
}

TEST(ImportOpenAi, BadItemsAreReportedAndTheOthersTaken) {
  const ImportBatch batch = import_ok(
      "{\"role\":\"user\",\"content\":\"good\",\"id\":\"x\"}\n"
      "{\"role\":\"user\",\"content\":\"bad \xFF\xFE\"}\n"
      "{\"role\":\"king\",\"content\":\"bad\"}\n"
      "{\"role\":\"user\",\"content\":7}\n"
      "not json\n"
      "{\"role\":\"user\",\"content\":\"again\",\"id\":\"x\"}\n"
      "{\"role\":\"user\",\"content\":\"late\",\"time\":\"tomorrow\"}\n"
      "{\"role\":\"user\",\"content\":\"\\ud800\"}\n"
      "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}\n"
      "{\"role\":\"user\",\"content\":\"good too\"}\n");
  EXPECT_THAT(batch.turns, SizeIs(2));
  EXPECT_EQ(batch.skipped, 1U);
  ASSERT_THAT(batch.errors, SizeIs(7));
  EXPECT_THAT(batch.errors[0].message, HasSubstr("line 2: not valid UTF-8 at byte 30"));
  EXPECT_THAT(batch.errors[1].message, HasSubstr("\"king\" is none of"));
  EXPECT_THAT(batch.errors[2].message, HasSubstr("expected a string, found number"));
  EXPECT_EQ(batch.errors[3].item, 4U);
  EXPECT_EQ(batch.errors[4].code, StatusCode::kConflict);
  EXPECT_THAT(batch.errors[5].message, HasSubstr("is not a time"));
}

TEST(ImportOpenAi, LongTurnsBecomeSeveralFacts) {
  std::string words;
  while (words.size() < 2000) {
    words += "This is sentence number " + std::to_string(words.size()) + ". ";
  }
  const ImportBatch batch =
      import_ok(R"([{"role":"user","name":"Mara","content":")" + words + "\"}]");
  ASSERT_GE(batch.facts.size(), 4U);
  for (const FactInput& fact : batch.facts) {
    EXPECT_LE(fact.text.size(), kTurnFactBytes);
    EXPECT_THAT(fact.text, testing::StartsWith("Mara: This is sentence number"));
    EXPECT_EQ(fact.text.back(), '.');
  }
}

TEST(SplitText, LosesNothingAndKeepsCodePointsWhole) {
  EXPECT_THAT(split_text("", 10), IsEmpty());
  EXPECT_THAT(split_text("short", 10), ElementsAre("short"));
  EXPECT_THAT(split_text("one two three", 8), ElementsAre("one two", "three"));
  EXPECT_THAT(split_text("aaaa. bbbb. cccc", 12), ElementsAre("aaaa. bbbb.", "cccc"));
  EXPECT_THAT(split_text("ääääää", 8), ElementsAre("ääää", "ää"));
}

TEST(ImportExport, ByteOrderMarkIsNamed) {
  const std::string header = "\xEF\xBB\xBF{\"format\":\"inferscale\",\"version\":1,\"scope\":{}}\n";
  for (const ImportFormat format : {ImportFormat::kAuto, ImportFormat::kInferscale}) {
    ImportOptions options;
    options.format = format;
    const auto batch = parse_import(header, options);
    EXPECT_EQ(batch.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(batch.status().message(), HasSubstr("byte order mark"));
  }
}

TEST(ImportExport, IsAmongTheFormatsThatAreListed) {
  const auto batch = parse_import("{\"a\":1}\n{\"b\":2}\n", {});
  EXPECT_EQ(batch.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(batch.status().message(), HasSubstr("openai|mem0|locomo|inferscale"));
}

TEST(ImportMem0, ReadsExportsAndKeepsTheId) {
  const std::string item =
      R"({"id":"m1","memory":"Likes tea","user_id":"bob","metadata":{"user_id":"eve","n":1},)"
      R"("created_at":"2024-07-01T12:00:00.5-07:00","categories":["food"]})";
  for (const std::string& text : {"[" + item + "]", "{\"results\":[" + item + "]}", item}) {
    const ImportBatch batch = import_ok(text);
    EXPECT_EQ(batch.format, ImportFormat::kMem0);
    EXPECT_THAT(batch.turns, IsEmpty());
    ASSERT_THAT(batch.facts, SizeIs(1));
    EXPECT_EQ(batch.facts[0].metadata,
              R"({"user_id":"eve","n":1,"mem0_id":"m1","categories":["food"]})");
    EXPECT_EQ(batch.facts[0].event_time, "2024-07-01T12:00:00.5-07:00");
  }
}

TEST(ImportMem0, NeverMixesUsers) {
  const std::string text =
      R"([{"memory":"a","user_id":"bob"},{"memory":"b","user_id":"eve"},{"memory":"c"}])";
  EXPECT_THAT(import_error(text).message(), HasSubstr("2 users (bob, eve)"));
  ImportOptions options;
  options.mem0_user = "eve";
  const ImportBatch batch = import_ok(text, options);
  ASSERT_THAT(batch.facts, SizeIs(1));
  EXPECT_EQ(batch.facts[0].text, "b");
  options.mem0_user = "nobody";
  EXPECT_EQ(import_error(text, options).code(), StatusCode::kNotFound);
}

constexpr const char* kLocomo = R"([
  {"sample_id":"c1","conversation":{}},
  {"sample_id":"c2","conversation":{"speaker_a":"Ann","speaker_b":"Ben",
    "session_10":[{"speaker":"Ann","dia_id":"D10:1","text":"Late."}],
    "session_10_date_time":"12:05 am on 1 January, 2024",
    "session_2":[{"speaker":"Ann","dia_id":"D2:1","text":"Look!","blip_caption":"a dog"},
                 {"speaker":"Ben","dia_id":"D2:2","text":"Wow."}, {"speaker":"Ben"}],
    "session_2_date_time":"1:56 pm on 8 May, 2023"},
   "observation":{"session_2_observation":{"Ann":[["Ann has a dog.","D2:1"],["Both.",["D2:1","D2:2"]]],
                                           "Ben":[["Ben is amazed.","D2:1; D2:2"],["bad"]]}}}])";

TEST(ImportLocomo, NeedsAConversation) {
  const Status several = import_error(kLocomo);
  EXPECT_EQ(several.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(several.message(), HasSubstr("--conversation ID: c1, c2"));
  ImportOptions options;
  options.conversation = "c9";
  EXPECT_EQ(import_error(kLocomo, options).code(), StatusCode::kNotFound);
}

TEST(ImportLocomo, ReadsTurnsAndObservations) {
  ImportOptions options;
  options.conversation = "c2";
  const ImportBatch batch = import_ok(kLocomo, options);
  ASSERT_THAT(batch.turns, SizeIs(3));
  EXPECT_EQ(batch.turns[0].text, "Look! [shares a picture: a dog]");
  EXPECT_EQ(batch.turns[0].role, "user");
  EXPECT_EQ(batch.turns[0].event_time, "2023-05-08T13:56:00Z");
  EXPECT_EQ(batch.turns[1].role, "assistant");
  EXPECT_EQ(batch.turns[2].id, "D10:1");
  EXPECT_EQ(batch.turns[2].event_time, "2024-01-01T00:05:00Z");
  ASSERT_THAT(batch.facts, SizeIs(3));
  EXPECT_THAT(batch.facts[1].source_turns, ElementsAre("D2:1", "D2:2"));
  EXPECT_THAT(batch.facts[2].source_turns, ElementsAre("D2:1", "D2:2"));
  EXPECT_EQ(batch.facts[2].event_time, "2023-05-08T13:56:00Z");
  ASSERT_THAT(batch.errors, SizeIs(2));
  EXPECT_THAT(batch.errors[0].message, HasSubstr("session_2: a turn needs dia_id"));
  options.facts_from_turns = false;
  EXPECT_THAT(import_ok(kLocomo, options).facts, IsEmpty());
}

TEST(ImportFacts, ReadsLines) {
  const Result<ImportBatch> batch = parse_facts_file(
      "{\"text\":\"A.\",\"event_time\":\"2025-01-14\",\"source_turns\":[\"d1\"],"
      "\"metadata\":{\"a\":[1]}}\n{\"text\":\"  \"}\n{\"text\":\"B.\",\"source_turns\":\"d1\"}\n"
      "{\"text\":\"C.\"}\n");
  ASSERT_TRUE(batch.ok());
  ASSERT_THAT(batch->facts, SizeIs(2));
  EXPECT_EQ(batch->facts[0].metadata, "{\"a\":[1]}");
  EXPECT_THAT(batch->fact_items, ElementsAre(0U, 3U));
  EXPECT_THAT(batch->errors, SizeIs(2));
}

TEST(Import, SaysWhatItCannotRead) {
  EXPECT_THAT(import_error("").message(), HasSubstr("empty"));
  EXPECT_THAT(import_error("hello").message(), HasSubstr("neither a JSON document nor JSON Lines"));
  EXPECT_THAT(import_error("{\"messages\":[\n{\"role\":\"user\",\n\"content\":\"x\"").message(),
              HasSubstr("ends too early"));
  EXPECT_THAT(import_error(R"([{"a":1}])").message(), HasSubstr("objects with a, but a chat"));
  EXPECT_THAT(import_error("[]").message(), HasSubstr("no objects"));
  EXPECT_THAT(import_error("\xFF\xFE").message(), HasSubstr("neither"));
}

}  // namespace
}  // namespace inferscale
