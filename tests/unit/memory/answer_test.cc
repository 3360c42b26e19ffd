// Asking: what is injected, what falls back, and that the answer is right either way.
#include <gtest/gtest.h>

#include "unit/kv/segment_files.h"
#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

const std::vector<std::string> kFacts = {"Ana lives in Graz", "Ana has a cat called Momo",
                                         "Ana plays the banjo", "Ana works at the bindery"};

TEST(Answer, InjectsEveryFactAndPrefillsTheQuestionOnly) {
  ServiceRig rig;
  rig.open();
  EXPECT_EQ(rig.add(user("ana"), kFacts).facts_encoded, 4U);
  const AskReply reply = rig.ask(user("ana"), "What does Ana play?");
  EXPECT_EQ(injected_facts(reply), 4U);
  EXPECT_TRUE(reply.fallbacks.empty());
  EXPECT_EQ(reply.answer, rig.expected_answer());
  const FakeCall call = rig.engine->calls().back();
  EXPECT_EQ(call.tokens_prefilled, call.branches.front().size());
  EXPECT_EQ(reply.tokens.prompt, reply.tokens.injected + reply.tokens.prefilled);
}

TEST(Answer, TextAndInjectedPromptsAreTheSameTokens) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts);
  const AskReply injected = rig.ask(user("ana"), "Where does Ana live?");
  const AskReply text = rig.ask(user("ana"), "Where does Ana live?", 10, false);
  EXPECT_EQ(injected_facts(text), 0U);
  EXPECT_EQ(text.tokens.injected, 0U);
  EXPECT_EQ(injected.answer, text.answer);
  EXPECT_EQ(injected.tokens.prompt, text.tokens.prompt);
  EXPECT_EQ(fallback_count(text, "injection_not_wanted"), 4U);
}

TEST(Answer, OneFactWithoutKvCostsItsOwnTokensOnly) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts);
  rig.add(user("ana"), {"Ana is allergic to hazelnuts"}, false);
  const AskReply reply = rig.ask(user("ana"), "What is Ana allergic to?");
  EXPECT_EQ(injected_facts(reply), 4U);
  EXPECT_EQ(reply.facts.size(), 5U);
  EXPECT_EQ(fallback_count(reply, "record_missing"), 1U);
  EXPECT_EQ(reply.answer, rig.expected_answer());
  const FakeCall call = rig.engine->calls().back();
  EXPECT_EQ(call.tokens_prefilled, call.branches.front().size() + call.segments.back().size());
  // On demand: what was missing is encoded by the next call, and injected from then on.
  ASSERT_EQ(rig.service->encode_wanted({})->encoded, 1U);
  ASSERT_EQ(rig.service->encode_wanted({})->encoded, 0U);
  EXPECT_EQ(injected_facts(rig.ask(user("ana"), "What is Ana allergic to?")), 5U);
}

TEST(Answer, TopJIsMeasuredOnceAProcessHoweverBusyTheMachine) {
  ServiceRig rig;
  rig.options.top_j.reset();
  rig.open();
  rig.add(user("ana"), kFacts);
  (void)rig.ask(user("ana"), "Where does Ana live?");
  rig.engine->clear_calls();
  (void)rig.ask(user("ana"), "Where does Ana live?");
  EXPECT_EQ(rig.engine->calls().size(), 1U) << "the answer alone";
}

TEST(Answer, ColdHeaderIsPrefilledOnceAndSaidSo) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts, false);
  const AskReply first = rig.ask(user("ana"), "Where?");
  EXPECT_EQ(fallback_count(first, "header_cold"), 1U);
  EXPECT_EQ(first.answer, rig.expected_answer());
  EXPECT_EQ(fallback_count(rig.ask(user("ana"), "Where?"), "header_cold"), 0U);
}

TEST(Answer, AHeaderThatTheHostBudgetHasNoRoomForIsNotCapturedAgain) {
  ServiceRig rig;
  rig.options.host_budget_bytes = 1;
  rig.open();
  rig.add(user("ana"), kFacts);
  const AskReply reply = rig.ask(user("ana"), "Where?");
  EXPECT_EQ(fallback_count(reply, "header_cold"), 0U);
  EXPECT_GE(fallback_count(reply, "host_budget_full"), 1U);
  EXPECT_EQ(reply.answer, rig.expected_answer());
}

TEST(Answer, EvictedRecordsFallBackAndComeBackOnDemand) {
  ServiceRig rig;
  rig.options.disk_budget_bytes = 0;
  rig.options.host_budget_bytes = 24U << 10;  // a few records
  rig.open();
  std::vector<std::string> many;
  for (int i = 0; i < 40; ++i) {
    many.push_back("Fact number " + std::to_string(i) + " about the garden");
  }
  rig.add(user("ana"), many);
  const AskReply reply = rig.ask(user("ana"), "garden", 40);
  EXPECT_GT(fallback_count(reply, "record_evicted"), 0U);
  EXPECT_EQ(fallback_count(reply, "record_evicted") + fallback_count(reply, "record_missing") +
                injected_facts(reply),
            40U);
  EXPECT_EQ(reply.answer, rig.expected_answer());
}

TEST(Answer, AnotherModelNeverSeesTheRecords) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts);
  rig.engine_options.model = 2;
  rig.open();
  const AskReply reply = rig.ask(user("ana"), "Where does Ana live?");
  EXPECT_EQ(injected_facts(reply), 0U);
  EXPECT_EQ(fallback_count(reply, "record_missing"), 4U);
  EXPECT_EQ(reply.answer, rig.expected_answer());
  EXPECT_EQ(rig.service->encode_pending({})->encoded, 4U);
  EXPECT_EQ(injected_facts(rig.ask(user("ana"), "Where does Ana live?")), 4U);
}

TEST(Answer, FlippedBitsAreNoticedAndCostTextOnly) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts);
  rig.service.reset();
  testing::corrupt_entries(posix_file_system(), rig.options.directory / "kv");
  rig.open();
  const AskReply reply = rig.ask(user("ana"), "Where does Ana live?");
  EXPECT_EQ(injected_facts(reply), 0U);
  EXPECT_EQ(fallback_count(reply, "bad_checksum"), 4U);
  EXPECT_EQ(reply.answer, rig.expected_answer());
}

TEST(Answer, InjectionOffMeansTextEverywhere) {
  ServiceRig rig;
  rig.engine_options.injection = false;
  rig.open();
  const AddReply added = rig.add(user("ana"), kFacts);
  EXPECT_EQ(added.facts_added, 4U);
  EXPECT_EQ(added.facts_encoded, 0U);
  EXPECT_NE(added.note.find("injection is off"), std::string::npos);
  const AskReply reply = rig.ask(user("ana"), "Where does Ana live?");
  EXPECT_EQ(injected_facts(reply), 0U);
  EXPECT_EQ(fallback_count(reply, "injection_off"), 4U);
  EXPECT_EQ(reply.answer, rig.expected_answer());
}

TEST(Answer, RejectedStateFallsBackToText) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts);
  rig.engine->reject_next_injections(1);
  const AskReply reply = rig.ask(user("ana"), "Where does Ana live?");
  EXPECT_EQ(injected_facts(reply), 0U);
  EXPECT_GT(fallback_count(reply, "state_rejected"), 0U);
  EXPECT_EQ(reply.answer, rig.expected_answer());
}

TEST(Answer, SmallContextDropsTheLowestRankedAndSaysSo) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts);
  AskRequest request;
  request.scope = user("ana");
  request.question = "Where does Ana live?";
  request.max_tokens = 32;
  const AskReply whole = *rig.service->ask(request);
  ASSERT_EQ(whole.facts.size(), 4U);
  rig.engine_options.context_tokens = whole.tokens.prompt + request.max_tokens - 10;
  rig.open();
  auto reply = rig.service->ask(request);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(fallback_count(*reply, "context_full"), 1U);
  ASSERT_EQ(reply->facts.size(), 3U);
  for (const UsedFact& fact : reply->facts) {
    EXPECT_LE(fact.rank, 3U);
  }
  EXPECT_EQ(reply->answer, rig.expected_answer());
  request.question = std::string(1000, 'x');
  EXPECT_EQ(rig.service->ask(request).status().code(), StatusCode::kResourceExhausted);
}

TEST(Answer, TopJBestFactsStandLastAsText) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts);
  AskRequest request;
  request.scope = user("ana");
  request.question = "Ana banjo";
  request.top_j = 2;
  auto reply = rig.service->ask(request);
  ASSERT_TRUE(reply.ok());
  ASSERT_EQ(reply->facts.size(), 4U);
  EXPECT_EQ(injected_facts(*reply), 2U);
  EXPECT_EQ(reply->facts[3].rank, 1U);
  EXPECT_EQ(reply->facts[2].rank, 2U);
  EXPECT_FALSE(reply->facts[2].injected);
  EXPECT_EQ(reply->answer, rig.expected_answer());
}

TEST(Answer, SurvivesARestartWithoutEncodingAgain) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts);
  rig.open();
  const AskReply reply = rig.ask(user("ana"), "Where does Ana live?");
  EXPECT_EQ(injected_facts(reply), 4U);
  EXPECT_EQ(rig.engine->calls().size(), 1U);
}

TEST(Answer, CompareRunsTheSameTokensThreeWays) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), kFacts);
  AskRequest request;
  request.scope = user("ana");
  request.question = "What does Ana play?";
  auto reply = rig.service->compare(request, 3);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_TRUE(reply->same_token_ids);
  EXPECT_TRUE(reply->greedy_equal);
  EXPECT_NE(reply->none.answer, reply->text.answer);
  EXPECT_EQ(reply->text.tokens.prompt, reply->inject.tokens.prompt);
  EXPECT_EQ(injected_facts(reply->text), 0U);
  EXPECT_EQ(injected_facts(reply->inject), 4U);
  EXPECT_LT(reply->none.tokens.prompt, reply->text.tokens.prompt);
}

TEST(Answer, RefusesWhatIsOutOfRange) {
  ServiceRig rig;
  rig.open();
  AskRequest request;
  request.question = "";
  EXPECT_EQ(rig.service->ask(request).status().code(), StatusCode::kInvalidArgument);
  request.question = "\xff";
  EXPECT_EQ(rig.service->ask(request).status().code(), StatusCode::kInvalidArgument);
  request.question = "ok?";
  request.k = 1001;
  EXPECT_EQ(rig.service->ask(request).status().code(), StatusCode::kInvalidArgument);
  request.k = 0;
  request.temperature = -1;
  EXPECT_EQ(rig.service->ask(request).status().code(), StatusCode::kInvalidArgument);
  request.temperature = 0;
  request.max_tokens = 0;
  EXPECT_EQ(rig.service->ask(request).status().code(), StatusCode::kInvalidArgument);
  request.max_tokens = 8;
  EXPECT_TRUE(rig.service->ask(request).ok()) << "a question without memory is fine";
}

}  // namespace
}  // namespace inferscale
