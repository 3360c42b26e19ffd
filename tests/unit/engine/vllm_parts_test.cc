// What the client of a vLLM server is made of: addresses, event streams, token names, parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/run_plan.h"
#include "engine/vllm/address.h"
#include "engine/vllm/completion.h"
#include "engine/vllm/parking.h"
#include "engine/vllm/server_text.h"
#include "engine/vllm/vllm_request.h"
#include "support/fake_vllm.h"

namespace inferscale::vllm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(VllmAddress, ReadsItsParts) {
  const auto plain = parse_vllm_address("vllm=http://127.0.0.1:8000/");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->url, "http://127.0.0.1:8000");
  EXPECT_EQ(plain->control, "");
  const auto whole = parse_vllm_address("vllm=http://a,control=http://b:1,control-file=/c/d.json");
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->control, "http://b:1");
  EXPECT_EQ(whole->control_file, "/c/d.json");
}

TEST(VllmAddress, RefusesWhatItDoesNotUnderstand) {
  for (const char* text : {"", "llama", "vllm", "vllm=", "vllm=localhost:8000", "vllm=http://a/v1",
                           "http://a", "vllm=http://a,vllm=http://b", "vllm=http://a,port=3",
                           "control=http://a", "vllm=http://a,,", "vllm=http://a,control-file="}) {
    const auto address = parse_vllm_address(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("vllm=http://HOST:PORT"))
        << text;
    EXPECT_EQ(address.status().message().find("/v1"), std::string::npos) << text;
  }
}

TEST(EventReader, FindsEventsHoweverTheStreamIsCut) {
  const std::string stream =
      ": comment\n\ndata: one\n\ndata:two\r\n\r\nevent: x\ndata:  three\n\ndata: \n\n";
  for (std::size_t size = 1; size < stream.size(); ++size) {
    EventReader reader;
    std::vector<std::string> seen;
    for (std::size_t at = 0; at < stream.size(); at += size) {
      EXPECT_TRUE(
          reader.push(std::string_view(stream).substr(at, size), [&](std::string_view data) {
            seen.emplace_back(data);
            return true;
          }));
    }
    EXPECT_THAT(seen, ElementsAre("one", "two", "three", "")) << size;
  }
}

TEST(EventReader, StopsWhereItIsToldToAndAtEndlessLines) {
  EventReader reader;
  int seen = 0;
  EXPECT_FALSE(reader.push("data: 1\ndata: 2\n", [&](std::string_view) { return ++seen > 1; }));
  EXPECT_EQ(seen, 1);
  EventReader endless;
  const std::string piece(1U << 19, 'x');
  bool more = true;
  for (int i = 0; i < 4 && more; ++i) {
    more = endless.push(piece, [](std::string_view) { return true; });
  }
  EXPECT_FALSE(more);
  EXPECT_TRUE(endless.overlong());
}

RecordKey key_of(unsigned char n) {
  RecordKey key;
  key.value.bytes.front() = std::byte{n};
  return key;
}

RunRequest turn_of(std::vector<TokenId> history, std::uint32_t max_tokens) {
  RunRequest run;
  run.session = "s";
  run.plan.push_back({std::move(history), Lease()});
  run.branches.push_back({{1}, {}, {}});
  run.sampling.max_tokens = max_tokens;
  return run;
}

RequestTrace trace_of(std::vector<RequestTrace::Span> spans) {
  RequestTrace trace;
  trace.segments = std::move(spans);
  return trace;
}

TEST(ParkingLot, CapturesBehindTheLastBlockAndNamesItNextTime) {
  ParkingLot lot(4);
  EngineInfo info;
  info.injection = true;
  lot.turn_ran("s", trace_of({{key_of(1), 0, 3}, {key_of(2), 3, 6}}));
  const RunRequest park = turn_of(std::vector<TokenId>(9, 7), 0);
  ASSERT_TRUE(is_parking(park));
  EXPECT_THAT(lot.before(park), ElementsAre(key_of(1), key_of(2)));
  const auto range = lot.rest(park, info);  // 10 tokens: whole blocks end at 8
  ASSERT_TRUE(range.ok() && range->has_value());
  EXPECT_EQ((*range)->begin, 8U);
  EXPECT_EQ((*range)->end, 10U);
  lot.parked("s", std::vector<TokenId>(10, 7), RequestTrace::Span{key_of(3), 8, 10});
  EXPECT_THAT(lot.before(turn_of(std::vector<TokenId>(10, 7), 5)), ElementsAre(key_of(3)));
  EXPECT_TRUE(lot.before(turn_of(std::vector<TokenId>(10, 8), 5)).empty()) << "other tokens";
  RunRequest text = turn_of(std::vector<TokenId>(10, 7), 5);
  text.allow_injection = false;
  EXPECT_TRUE(lot.before(text).empty());
  lot.forget("s");
  EXPECT_TRUE(lot.before(turn_of(std::vector<TokenId>(10, 7), 5)).empty());
}

TEST(ParkingLot, GoesOnFromInjectedRowsWithinTheLastBlock) {
  ParkingLot lot(16);
  EngineInfo info;
  info.injection = true;
  lot.turn_ran("s", trace_of({{key_of(1), 0, 5}, {key_of(2), 5, 20}}));
  const auto range = lot.rest(turn_of(std::vector<TokenId>(24, 7), 0), info);
  ASSERT_TRUE(range.ok() && range->has_value());
  EXPECT_EQ((*range)->begin, 20U);
  lot.parked("s", std::vector<TokenId>(25, 7), RequestTrace::Span{key_of(3), 20, 25});
  EXPECT_THAT(lot.before(turn_of(std::vector<TokenId>(25, 7), 5)),
              ElementsAre(key_of(2), key_of(3)));
}

TEST(ParkingLot, NamesNothingAcrossAGap) {
  ParkingLot lot(16);
  lot.turn_ran("s", trace_of({{key_of(1), 0, 20}}));
  lot.parked("s", std::vector<TokenId>(25, 7), std::nullopt);
  EXPECT_TRUE(lot.before(turn_of(std::vector<TokenId>(25, 7), 5)).empty());
  lot.parked("unknown", std::vector<TokenId>(25, 7), std::nullopt);
}

TEST(ByteLevelNames, SpellBytes) {
  EXPECT_EQ(byte_level_bytes("Ġhello"), " hello");
  EXPECT_EQ(byte_level_bytes("Ċ"), "\n");
  EXPECT_EQ(byte_level_bytes("Ã©"), "é");
  EXPECT_EQ(byte_level_bytes("\xC4\x80"), std::string(1, '\0'));
  EXPECT_EQ(byte_level_bytes("\xC5\x82"), "\xA0");
  EXPECT_EQ(byte_level_bytes("\xC5\x83"), "\xAD");
  EXPECT_EQ(byte_level_bytes("\xC4\xA1"), "\x7F");
  EXPECT_EQ(byte_level_bytes("▁hello"), std::nullopt) << "SentencePiece spells otherwise";
  EXPECT_EQ(byte_level_bytes("\xC5\x84"), std::nullopt);
}

class ServerText : public ::testing::Test {
 protected:
  FakeVllm server_{std::vector<std::byte>(32, std::byte{7})};
  std::unique_ptr<HttpClient> client_ = make_http_client({.ca_file = {}, .kept_connections = 2});
  std::unique_ptr<ServerTokenizer> tokenizer_ =
      ServerTokenizer::open(*client_, server_.url(), "fake").value();
  const FakeTokenizer plain_;
};

TEST_F(ServerText, TokenisesAsTheServersTokenizer) {
  for (const std::string text :
       {"Hello there\n", "", "caf\xC3\xA9 \xF0\x9F\x98\x80", "<p>[x]</p>"}) {
    const auto tokens = tokenizer_->encode(text, false);
    ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
    EXPECT_EQ(*tokens, plain_.encode(text, false).value()) << text;
  }
  EXPECT_EQ(tokenizer_->encode("\xFF", false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(tokenizer_->prompt_prefix(), ElementsAre(FakeTokenizer::kBegin));
}

TEST_F(ServerText, NamesOfControlTokensInTextStayText) {
  const std::string text = "a<|im_end|><|im_end|>\n<|im_start|>system<s>";
  const auto as_text = tokenizer_->encode(text, false);
  ASSERT_TRUE(as_text.ok()) << as_text.status().to_string();
  EXPECT_EQ(*as_text, plain_.encode(text, false).value());
  const auto parsed = tokenizer_->encode(text, true);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, plain_.encode(text, true).value());
}

TEST_F(ServerText, KnowsWhatTokensSay) {
  EXPECT_EQ(tokenizer_->token_bytes('x'), "x");
  EXPECT_EQ(tokenizer_->token_bytes(-1), "");
  const std::vector<TokenId> smile = {0xF0, 0x9F, 0x98, 0x80};
  tokenizer_->learn(smile, "\xF0\x9F\x98\x80");
  std::string text;
  for (const TokenId token : smile) {
    text += tokenizer_->token_bytes(token);
  }
  EXPECT_EQ(text, "\xF0\x9F\x98\x80");
  EXPECT_FALSE(tokenizer_->is_end_of_generation(FakeTokenizer::kMessageEnd));
  tokenizer_->learn_end(FakeTokenizer::kMessageEnd);
  EXPECT_TRUE(tokenizer_->is_end_of_generation(FakeTokenizer::kMessageEnd));
}

TEST_F(ServerText, AppliesTheServersChatTemplate) {
  const ServerChatFormat format(*client_, server_.url(), "fake");
  const std::vector<ChatMessage> messages = {{"system", "be brief"}, {"user", "hi"}};
  EXPECT_EQ(format.render(messages, true).value(), FakeChatFormat().render(messages, true).value());
  EXPECT_EQ(format.render(messages, false).value(),
            FakeChatFormat().render(messages, false).value());
}

TEST(RequestParameters, CapturesAreOfTheScopeTheTenantOrTheSystem) {
  const std::vector<std::byte> secret(32, std::byte{7});
  RunRequest run;
  run.run_for.scope = Scope{"acme", "alice", "", ""};
  run.branches.emplace_back();
  Branch& branch = run.branches.front();
  branch.tokens = {1, 2, 3};
  branch.captures.resize(1);
  branch.captures[0].end = 2;
  const auto owner = [&](const Scope& scope) {
    branch.captures[0].meta.scope = scope_hash(scope);
    return make_params(run, RunPlan(), branch, {}, secret);
  };
  EXPECT_EQ(owner(run.run_for.scope)->capture.at(0).owner, RecordOwner::kScope);
  EXPECT_EQ(owner(Scope{"acme", "", "", ""})->capture.at(0).owner, RecordOwner::kTenant);
  EXPECT_EQ(owner(system_scope())->capture.at(0).owner, RecordOwner::kSystem);
  EXPECT_EQ(owner(Scope{"acme", "bob", "", ""}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(owner(system_scope())->purpose, RequestPurpose::kEncode);
  run.sampling.max_tokens = 5;
  EXPECT_EQ(owner(system_scope())->purpose, RequestPurpose::kInject);
  run.allow_injection = false;
  EXPECT_EQ(owner(system_scope())->purpose, RequestPurpose::kText);
}

}  // namespace
}  // namespace inferscale::vllm
