#include <gtest/gtest.h>

#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

AskReply say(Chat& chat, const std::string& message) {
  auto reply = chat.say(message, {}, nullptr);
  EXPECT_TRUE(reply.ok()) << reply.status().to_string();
  return reply.ok() ? *reply : AskReply();
}

// Of the run that answered: the one before the parking run.
FakeCall answering_call(const ServiceRig& rig) {
  const std::vector<FakeCall> calls = rig.engine->calls();
  return calls.at(calls.size() - 2);
}

TEST(Chat, EachTurnPrefillsItsOwnQuestionOnlyAndAddsNewFactsOnly) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"Ana lives in Graz", "Ana plays the banjo"});
  ChatOptions options;
  options.scope = user("ana");
  auto chat = rig.service->open_chat(options);
  ASSERT_TRUE(chat.ok());
  const AskReply first = say(**chat, "Where do I live?");
  EXPECT_EQ(injected_facts(first), 2U);
  for (int turn = 0; turn < 10; ++turn) {
    rig.add(user("ana"), {"Ana met friend number " + std::to_string(turn)});
    const AskReply reply = say(**chat, "Whom did Ana meet? " + std::to_string(turn));
    EXPECT_EQ(reply.facts.size(), 1U) << "the others are in the context already";
    EXPECT_EQ(injected_facts(reply), 1U);
    const FakeCall call = answering_call(rig);
    EXPECT_EQ(call.tokens_prefilled, call.branches.front().size());
    EXPECT_TRUE(reply.fallbacks.empty());
  }
}

TEST(Chat, AnswersAsTheSameConversationComputedInOnePiece) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"Ana lives in Graz"});
  ChatOptions options;
  options.scope = user("ana");
  auto chat = rig.service->open_chat(options);
  ASSERT_TRUE(chat.ok());
  say(**chat, "Hello");
  const AskReply reply = say(**chat, "Where do I live?");
  const FakeCall call = answering_call(rig);
  std::vector<TokenId> tokens;
  for (const auto& segment : call.segments) {
    tokens.insert(tokens.end(), segment.begin(), segment.end());
  }
  tokens.insert(tokens.end(), call.branches.front().begin(), call.branches.front().end());
  EXPECT_EQ(reply.answer, FakeEngine::answer_to(tokens));
}

TEST(Chat, LostSessionIsRecomputedAsTextWithTheSameAnswer) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"Ana lives in Graz"});
  ChatOptions options;
  options.scope = user("ana");
  auto chat = rig.service->open_chat(options);
  ASSERT_TRUE(chat.ok());
  say(**chat, "Hello");
  rig.engine->drop_all_sessions();
  say(**chat, "Where do I live?");
  const FakeCall call = answering_call(rig);
  EXPECT_EQ(call.tokens_reused, 0U);
  EXPECT_GT(call.tokens_prefilled, call.branches.front().size());
}

TEST(Chat, DeletedFactLeavesTheConversation) {
  ServiceRig rig;
  rig.open();
  const std::string id = rig.add(user("ana"), {"Ana lives in Graz"}).ids.front();
  rig.add(user("ana"), {"Ana plays the banjo"});
  ChatOptions options;
  options.scope = user("ana");
  auto chat = rig.service->open_chat(options);
  ASSERT_TRUE(chat.ok());
  say(**chat, "Hello");
  const std::vector<std::string> ids = {id};
  ASSERT_TRUE(rig.service->remove(user("ana"), ids, false, true, {}).ok());
  const AskReply reply = say(**chat, "Where do I live?");
  EXPECT_EQ(fallback_count(reply, "chat_restarted_after_delete"), 1U);
  const FakeCall call = answering_call(rig);
  EXPECT_EQ(call.tokens_reused, 0U);
  for (const auto& segment : call.segments) {
    std::string text;
    for (const TokenId token : segment) {
      text += token < 256 ? std::string(1, static_cast<char>(token)) : "";
    }
    EXPECT_EQ(text.find("Graz"), std::string::npos);
  }
}

TEST(Chat, FullContextStartsOverAndSaysSo) {
  ServiceRig rig;
  rig.engine_options.context_tokens = 700;
  rig.open();
  rig.add(user("ana"), {"Ana lives in Graz"});
  ChatOptions options;
  options.scope = user("ana");
  options.max_tokens = 64;
  auto chat = rig.service->open_chat(options);
  ASSERT_TRUE(chat.ok());
  std::uint32_t restarts = 0;
  for (int turn = 0; turn < 8; ++turn) {
    restarts +=
        fallback_count(say(**chat, "Tell me more about it, please, turn " + std::to_string(turn)),
                       "chat_restarted_context_full");
  }
  EXPECT_GT(restarts, 0U);
  EXPECT_EQ((*chat)->say(std::string(2000, 'x'), {}, nullptr).status().code(),
            StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace inferscale
