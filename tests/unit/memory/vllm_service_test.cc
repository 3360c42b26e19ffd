// The memory service over a vLLM server: what it answers, injects and erases, and what it does when
// something of the server is missing or fails.
#include <gmock/gmock.h>

#include "unit/memory/vllm_rig.h"

namespace inferscale {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::vector<std::string> kFacts = {"Ana lives in Graz", "Ana has a cat named Momo",
                                         "Ana works in a bakery"};

class VllmService : public ::testing::Test {
 protected:
  /// Facts of alice, encoded; the later two saw the first. Gives their ids.
  std::vector<std::string> start() {
    const AddReply first = rig_.add(user("alice"), {kFacts[0]});
    const AddReply later = rig_.add(user("alice"), {kFacts[1], kFacts[2]});
    EXPECT_EQ(first.facts_encoded + later.facts_encoded, 3U) << first.note << later.note;
    std::vector<std::string> ids = first.ids;
    ids.insert(ids.end(), later.ids.begin(), later.ids.end());
    return ids;
  }
  VllmRig rig_;
};

TEST_F(VllmService, AnswersAsTheEmbeddedEngineDoes) {
  start();
  const AskReply reply = rig_.ask(user("alice"));
  EXPECT_EQ(reply.answer, rig_.expected_answer());
  EXPECT_EQ(injected_facts(reply), 3U);
  EXPECT_EQ(reply.tokens.prompt,
            reply.tokens.injected + reply.tokens.reused + reply.tokens.prefilled);
  EXPECT_GT(reply.tokens.injected, 0U);

  ServiceRig embedded;
  embedded.open();
  embedded.add(user("alice"), kFacts);
  const AskReply other = embedded.ask(user("alice"), VllmRig::kQuestion);
  EXPECT_EQ(other.answer, reply.answer);
  EXPECT_EQ(other.tokens.prompt, reply.tokens.prompt);
  EXPECT_EQ(injected_facts(other), 3U);
}

TEST_F(VllmService, ATextAnswerIsOfTheSameTokensInANamespaceOfItsOwn) {
  start();
  rig_.ask(user("alice"));
  const FakeVllmCall injected = rig_.server->calls().back();
  const AskReply reply = rig_.ask(user("alice"), false);
  const FakeVllmCall text = rig_.server->calls().back();
  EXPECT_EQ(text.prompt, injected.prompt);
  EXPECT_EQ(text.params.purpose, RequestPurpose::kText);
  EXPECT_EQ(injected.params.purpose, RequestPurpose::kInject);
  EXPECT_TRUE(text.params.inject.empty());
  EXPECT_EQ(reply.tokens.injected, 0U);
  EXPECT_EQ(reply.tokens.reused, 0U) << "nothing that was injected before";
  EXPECT_EQ(injected_facts(reply), 0U);
  EXPECT_EQ(reply.answer, rig_.expected_answer());
}

TEST_F(VllmService, UsersAreKeptApart) {
  start();
  rig_.add(user("bob"), kFacts);
  rig_.server->clear_calls();
  EXPECT_EQ(injected_facts(rig_.ask(user("bob"))), 3U);
  for (const FakeVllmCall& call : rig_.server->calls()) {
    EXPECT_EQ(call.params.scope.user, "bob");
    EXPECT_EQ(call.refused, "");
  }
  EXPECT_TRUE(rig_.ask(user("carol")).facts.empty());
}

TEST_F(VllmService, StreamsAndStopsWhenTheCallerHasEnough) {
  start();
  AskRequest request;
  request.scope = user("alice");
  request.question = VllmRig::kQuestion;
  std::string text;
  request.on_text = [&](std::string_view piece) {
    text += piece;
    return text.size() < 4;
  };
  const auto reply = rig_.service->ask(request);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(text, "answ");
  EXPECT_EQ(reply->answer, "answ");
  request.on_text = {};
  request.max_tokens = 3;
  const auto cut = rig_.service->ask(request);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->answer, "ans");
  EXPECT_TRUE(cut->truncated);
}

TEST_F(VllmService, ADeleteReachesTheServerAndItsReceiptCounts) {
  const std::vector<std::string> ids = start();
  rig_.ask(user("alice"));
  const std::size_t before = rig_.server->records();
  const DeleteReceipt receipt = rig_.remove(delete_ids(user("alice"), {ids[0]}));
  EXPECT_EQ(receipt.facts, 1U);
  EXPECT_EQ(receipt.record_entries, 3U) << "the later two saw it";
  EXPECT_EQ(receipt.records_host, 3U);
  EXPECT_EQ(receipt.records_disk, 3U);
  EXPECT_TRUE(receipt.verified) << receipt.note;
  EXPECT_EQ(receipt.dependants_reencoded, 2U);
  EXPECT_EQ(rig_.server->epoch("alice"), 1U);
  EXPECT_EQ(rig_.server->records(), before - 1);

  const AskReply reply = rig_.ask(user("alice"));
  EXPECT_THAT(reply.facts, SizeIs(2));
  EXPECT_EQ(injected_facts(reply), 2U);
  EXPECT_EQ(rig_.server->calls().back().params.epoch, 1U);
  EXPECT_EQ(reply.tokens.reused, 0U) << "no block of before the delete";
}

TEST_F(VllmService, ADeleteWhileTheServerIsAwayIsMadeUpForBeforeItServes) {
  const std::vector<std::string> ids = start();
  rig_.ask(user("alice"));
  rig_.server->stop_control();
  const DeleteReceipt receipt = rig_.remove(delete_ids(user("alice"), {ids[0]}), false);
  EXPECT_EQ(receipt.facts, 1U);
  EXPECT_FALSE(receipt.verified);
  EXPECT_TRUE(receipt.engine_away);
  EXPECT_THAT(receipt.note, HasSubstr("erases them before it serves this user again"));
  EXPECT_EQ(rig_.server->epoch("alice"), 0U);

  rig_.server->start_control();  // on another port
  rig_.write_control_file();
  const AskReply first = rig_.ask(user("alice"));
  EXPECT_THAT(first.facts, SizeIs(2));
  EXPECT_EQ(injected_facts(first), 0U);
  EXPECT_EQ(fallback_count(first, "epoch_ahead"), 1U);
  EXPECT_EQ(rig_.server->epoch("alice"), 1U);
  const auto encoded = rig_.service->encode_pending({});
  ASSERT_TRUE(encoded.ok()) << encoded.status().to_string();
  EXPECT_EQ(encoded->encoded, 2U);
  EXPECT_EQ(injected_facts(rig_.ask(user("alice"))), 2U);
}

TEST_F(VllmService, AnEmbeddedDeleteIsKnownToTheServerToo) {
  const std::vector<std::string> ids = start();
  rig_.open_embedded();
  rig_.remove(delete_ids(user("alice"), {ids[1]}));
  rig_.open();
  const AskReply reply = rig_.ask(user("alice"));
  EXPECT_EQ(fallback_count(reply, "epoch_ahead"), 1U);
  EXPECT_EQ(injected_facts(reply), 0U);
  EXPECT_EQ(rig_.server->epoch("alice"), 1U);
}

TEST_F(VllmService, RecordsOfBothEnginesGoWithTheFact) {
  rig_.open_embedded();
  rig_.add(user("alice"), kFacts);
  rig_.open();
  const AskReply cold = rig_.ask(user("alice"));
  EXPECT_EQ(fallback_count(cold, "record_missing"), 3U) << "the server has none of them";
  ASSERT_TRUE(rig_.service->encode_wanted({}).ok());
  EXPECT_EQ(injected_facts(rig_.ask(user("alice"))), 3U);
  DeleteRequest all;
  all.scope = user("alice");
  all.all_in_scope = true;
  const DeleteReceipt receipt = rig_.remove(all);
  EXPECT_TRUE(receipt.verified) << receipt.note;
  EXPECT_EQ(receipt.records_host, 3U) << "the server's; the other process's memory is gone";
  EXPECT_EQ(receipt.records_disk, 6U) << "the server's and the data directory's";
  rig_.open_embedded();
  EXPECT_TRUE(rig_.ask(user("alice")).facts.empty());
}

TEST_F(VllmService, AnUpdateErasesTheReplacedRecord) {
  const std::vector<std::string> ids = start();
  const std::size_t before = rig_.server->records();
  UpdateRequest update;
  update.scope = user("alice");
  update.id = ids[0];
  update.text = "Ana lives in Linz";
  ASSERT_TRUE(rig_.service->update(update, true, {}).ok());
  EXPECT_EQ(rig_.server->records(), before);
  EXPECT_GT(rig_.server->epoch("alice"), 0U);
  const AskReply reply = rig_.ask(user("alice"));
  EXPECT_EQ(injected_facts(reply), 3U);
  EXPECT_EQ(fallback_count(reply, "stale_epoch"), 0U);
}

TEST_F(VllmService, AFailedLoadIsSentOnceMoreAsText) {
  start();
  using Failure = FakeVllm::LoadFailure;
  for (const Failure how : {Failure::kStatus500, Failure::kErrorEvent}) {
    rig_.ask(user("alice"));
    rig_.server->reset_prefix_cache();
    rig_.server->fail_next_load(how);
    rig_.server->clear_calls();
    const AskReply reply = rig_.ask(user("alice"));
    ASSERT_THAT(rig_.server->calls(), SizeIs(2));
    EXPECT_EQ(rig_.server->calls()[1].params.purpose, RequestPurpose::kText);
    EXPECT_EQ(rig_.server->calls()[1].prompt, rig_.server->calls()[0].prompt);
    EXPECT_EQ(reply.answer, rig_.expected_answer());
    EXPECT_EQ(fallback_count(reply, "engine_load_failed"), 1U);
    EXPECT_EQ(injected_facts(reply), 0U) << "what came is text";
    EXPECT_EQ(reply.tokens.injected, 0U);
  }
}

TEST_F(VllmService, AnAnswerThatBreaksOffGoesOnFromItsTokens) {
  start();
  rig_.ask(user("alice"));
  rig_.server->reset_prefix_cache();
  rig_.server->fail_next_load(FakeVllm::LoadFailure::kErrorAfterTokens);
  rig_.server->clear_calls();
  const AskReply reply = rig_.ask(user("alice"));
  ASSERT_THAT(rig_.server->calls(), SizeIs(2));
  const std::vector<TokenId> first = rig_.server->calls()[0].prompt;
  const std::vector<TokenId> second = rig_.server->calls()[1].prompt;
  ASSERT_EQ(second.size(), first.size() + 3);
  EXPECT_EQ(reply.answer,
            FakeEngine::answer_to(first).substr(0, 3) + FakeEngine::answer_to(second));
}

TEST_F(VllmService, AFailureWithoutInjectionIsAnErrorAndPasses) {
  start();
  rig_.ask(user("alice"));
  rig_.server->fail_next_requests(1, 500);
  EXPECT_EQ(rig_.try_ask(user("alice"), false).status().code(), StatusCode::kUnavailable);
  rig_.server->fail_next_requests(1, 503);
  EXPECT_EQ(rig_.try_ask(user("alice")).status().code(), StatusCode::kUnavailable);
  rig_.server->break_next_stream();
  const auto broken = rig_.try_ask(user("alice"));
  EXPECT_EQ(broken.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig_.ask(user("alice")).answer, rig_.expected_answer());
}

TEST_F(VllmService, WithoutTheControlChannelAnswersAreTextAndClaimNothing) {
  start();
  rig_.ask(user("alice"));
  rig_.server->stop_control();
  const AskReply reply = rig_.ask(user("alice"));
  EXPECT_EQ(reply.answer, rig_.expected_answer());
  EXPECT_EQ(injected_facts(reply), 0U);
  EXPECT_EQ(reply.tokens.injected, 0U);
  EXPECT_EQ(fallback_count(reply, "record_missing"), 3U);
  EXPECT_EQ(fallback_count(reply, "trace_missing"), 1U);
}

TEST_F(VllmService, WhatTheServerDoesNotCaptureStaysText) {
  rig_.server->set_captures(false);
  const AddReply added = rig_.add(user("alice"), kFacts);
  EXPECT_EQ(added.facts_added, 3U);
  EXPECT_EQ(added.facts_encoded, 0U);
  EXPECT_NE(added.note, "");
  const AskReply reply = rig_.ask(user("alice"));
  EXPECT_EQ(injected_facts(reply), 0U);
  EXPECT_EQ(fallback_count(reply, "record_missing"), 3U);
  EXPECT_EQ(reply.answer, rig_.expected_answer());
}

TEST_F(VllmService, AServerThatInjectsNothingSaysWhy) {
  rig_.server->set_injection(false);
  const AddReply added = rig_.add(user("alice"), kFacts);
  EXPECT_THAT(added.note, HasSubstr("switched off in the fake server"));
  const AskReply reply = rig_.ask(user("alice"));
  EXPECT_EQ(fallback_count(reply, "injection_off"), 3U);
  EXPECT_EQ(reply.answer, rig_.expected_answer());
  const auto stats = rig_.service->stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_THAT(stats->injection, HasSubstr("the vLLM server injects nothing"));
}

TEST_F(VllmService, ErrorsSayWhatToDo) {
  rig_.server = std::make_unique<FakeVllm>(std::vector<std::byte>(32, std::byte{1}));
  rig_.write_control_file();
  rig_.open();
  const auto stranger = rig_.try_ask(user("alice"));
  EXPECT_EQ(stranger.status().code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(stranger.status().message(), HasSubstr("secret_file"));
  std::filesystem::remove(rig_.options.directory / "vllm" / "control.json");
  rig_.open();
  const auto nowhere = rig_.try_ask(user("alice"));
  EXPECT_EQ(nowhere.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(nowhere.status().message(), HasSubstr("control-file=PATH"));
  rig_.server->stop();
  rig_.open();
  const auto down = rig_.try_ask(user("alice"));
  EXPECT_EQ(down.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(down.status().message(), HasSubstr("is it running"));
}

TEST_F(VllmService, AnotherServersControlChannelIsNoticed) {
  rig_.server->set_max_model_len(4096);
  rig_.open();
  EXPECT_EQ(rig_.try_ask(user("alice")).status().code(), StatusCode::kConflict);
}

TEST_F(VllmService, ComparesTheSameTokensThreeWays) {
  start();
  AskRequest request;
  request.scope = user("alice");
  request.question = VllmRig::kQuestion;
  const auto reply = rig_.service->compare(request, 2);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_TRUE(reply->same_token_ids);
  EXPECT_TRUE(reply->greedy_equal);
  EXPECT_EQ(reply->text.answer, reply->inject.answer);
  EXPECT_NE(reply->none.answer, reply->text.answer);
  EXPECT_EQ(injected_facts(reply->text), 0U);
  EXPECT_EQ(injected_facts(reply->inject), 3U);
  EXPECT_NEAR(reply->kl_first_token, 0, 1e-9);
  EXPECT_NEAR(reply->kl_noise_floor, 0, 1e-9);
  EXPECT_EQ(reply->inject.tokens.reused, 0U) << "an arm finds nothing of another";

  rig_.server->set_max_likely(20);
  const auto refused = rig_.service->compare(request, 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("--max-logprobs 1024"));
}

TEST_F(VllmService, ACancelledAnswerEnds) {
  start();
  rig_.ask(user("alice"));
  rig_.server->set_silent(true);
  const std::atomic<bool> cancelled{true};
  AskRequest request;
  request.scope = user("alice");
  request.question = VllmRig::kQuestion;
  request.cancelled = &cancelled;
  const auto reply = rig_.service->ask(request);
  EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(reply.status().message(), HasSubstr("cancelled"));
  rig_.server->set_silent(false);
}

TEST_F(VllmService, AConversationReusesWhatTheServerHasAndInjectsLaterFacts) {
  start();
  rig_.ask(user("alice"));
  ChatOptions options;
  options.scope = user("alice");
  options.k = 1;
  auto chat = rig_.service->open_chat(options);
  ASSERT_TRUE(chat.ok()) << chat.status().to_string();
  const auto first = (*chat)->say("where does Ana live", {}, nullptr);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(injected_facts(*first), 1U);
  const auto second = (*chat)->say("what does Ana do in a bakery", {}, nullptr);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_GT(second->tokens.reused, first->tokens.prompt);
  EXPECT_THAT(second->facts, SizeIs(1));
  EXPECT_EQ(injected_facts(*second), 1U);
  EXPECT_EQ(fallback_count(*second, "header_cold"), 0U);
  const std::vector<FakeVllmCall> calls = rig_.server->calls();
  EXPECT_EQ(second->answer, FakeEngine::answer_to(calls[calls.size() - 2].prompt));
}

}  // namespace
}  // namespace inferscale
