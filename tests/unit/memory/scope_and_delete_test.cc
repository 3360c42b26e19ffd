// Whose facts a request may use, and what a delete, an update and a crash leave behind.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

bool any_file_contains(const std::filesystem::path& data, const std::string& needle) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(data)) {
    if (!entry.is_regular_file()) {
      continue;
    }
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
    if (bytes.find(needle) != std::string::npos) {
      return true;
    }
  }
  return false;
}

TEST(ScopeRules, UsersNeverSeeEachOther) {
  ServiceRig rig;
  rig.open();
  const std::string id = rig.add(user("ana"), {"Ana hides the key under the mat"}).ids.front();
  rig.add(user("bob"), {"Bob likes keys"});
  const AskReply reply = rig.ask(user("bob"), "key under the mat");
  for (const UsedFact& fact : reply.facts) {
    EXPECT_EQ(fact.text.find("mat"), std::string::npos);
  }
  EXPECT_EQ(rig.service->get(user("bob"), id).status().code(), StatusCode::kNotFound);
  const std::vector<std::string> ids = {id};
  EXPECT_EQ(rig.service->remove(user("bob"), ids, false, true, {}).status().code(),
            StatusCode::kNotFound);
  UpdateRequest update;
  update.scope = user("bob");
  update.id = id;
  update.text = "mine now";
  EXPECT_EQ(rig.service->update(update, true, {}).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(rig.service->history(user("bob"), id).status().code() == StatusCode::kNotFound);
}

TEST(ScopeRules, AgentNarrowsARequestThatSetsIt) {
  ServiceRig rig;
  rig.open();
  Scope tutor = user("ana");
  tutor.agent = "tutor";
  rig.add(user("ana"), {"Ana likes tea"});
  rig.add(tutor, {"Ana struggles with fractions"});
  EXPECT_EQ(rig.ask(user("ana"), "Ana").facts.size(), 2U);
  const AskReply narrow = rig.ask(tutor, "Ana");
  ASSERT_EQ(narrow.facts.size(), 1U);
  EXPECT_NE(narrow.facts[0].text.find("fractions"), std::string::npos);
}

TEST(ScopeRules, MetadataCannotSetTheScope) {
  ServiceRig rig;
  rig.open();
  std::vector<FactInput> facts = {{"Ana likes tea", R"({"user":"bob","tenant":"other"})", "", {}}};
  auto added = rig.service->add(user("ana"), {}, facts, true, {});
  ASSERT_TRUE(added.ok());
  EXPECT_TRUE(rig.ask(user("bob"), "tea").facts.empty());
}

TEST(Delete, ReachesDependantsAndTheyAreEncodedAgain) {
  ServiceRig rig;
  rig.open();
  const std::vector<std::string> ids =
      rig.add(user("ana"), {"first fact", "second fact", "third fact"}, false).ids;
  // One by one, so that each sees the ones before it as its window.
  ASSERT_TRUE(rig.service->encode_pending({}).ok());
  const std::string fourth = rig.add(user("ana"), {"fourth fact"}).ids.front();
  const std::vector<std::string> erased = {ids[2]};
  auto receipt = rig.service->remove(user("ana"), erased, false, true, {});
  ASSERT_TRUE(receipt.ok()) << receipt.status().to_string();
  EXPECT_EQ(receipt->facts, 1U);
  EXPECT_GE(receipt->records_host, 2U) << "its own record and that of the fact that saw it";
  EXPECT_EQ(receipt->dependants, 1U);
  EXPECT_EQ(receipt->dependants_reencoded, 1U);
  EXPECT_TRUE(receipt->verified);
  const AskReply reply = rig.ask(user("ana"), "fact");
  EXPECT_EQ(injected_facts(reply), 3U);
  EXPECT_EQ(reply.answer, rig.expected_answer());
  for (const UsedFact& fact : reply.facts) {
    EXPECT_NE(fact.id, ids[2]);
  }
}

TEST(Delete, LeavesNoTraceOfTheTextInAnyFile) {
  ServiceRig rig;
  rig.open();
  const std::string id =
      rig.add(user("ana"), {"the xylophone hides behind the zinnias"}).ids.front();
  rig.add(user("ana"), {"another fact"});
  EXPECT_TRUE(any_file_contains(rig.options.directory, "xylophone"));
  const std::vector<std::string> ids = {id};
  ASSERT_TRUE(rig.service->remove(user("ana"), ids, false, true, {}).ok());
  EXPECT_FALSE(any_file_contains(rig.options.directory, "xylophone"));
  rig.service.reset();
  EXPECT_FALSE(any_file_contains(rig.options.directory, "xylophone"));
}

TEST(Delete, WholeScopeIsCountedAndVerified) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"one", "two", "three"});
  rig.add(user("bob"), {"four"});
  auto receipt = rig.service->remove(user("ana"), {}, false, true, {});
  ASSERT_TRUE(receipt.ok()) << receipt.status().to_string();
  EXPECT_EQ(receipt->facts, 3U);
  EXPECT_TRUE(receipt->verified);
  EXPECT_TRUE(rig.ask(user("ana"), "one").facts.empty());
  EXPECT_EQ(rig.ask(user("bob"), "four").facts.size(), 1U);
}

TEST(Delete, OrphanedRecordsOfAKilledProcessAreSweptAtTheNextStart) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"one", "two"});
  rig.service.reset();
  // As if the process had been killed after the catalog's half of a delete.
  std::filesystem::copy(rig.options.directory / "kv", rig.options.directory / "kv-before",
                        std::filesystem::copy_options::recursive);
  rig.open();
  ASSERT_TRUE(rig.service->remove(user("ana"), {}, false, true, {}).ok());
  rig.service.reset();
  std::filesystem::copy(
      rig.options.directory / "kv-before", rig.options.directory / "kv",
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::skip_existing);
  std::filesystem::remove_all(rig.options.directory / "kv-before");
  rig.open();
  const auto stats = rig.service->stats();
  ASSERT_TRUE(stats.ok()) << stats.status().to_string();
  for (const TierStats& tier : stats->kv.tiers) {
    EXPECT_LE(tier.records, 1U) << tier.name << ": only the header's record may be left";
  }
}

TEST(Update, NewVersionIsServedAndHistoryKept) {
  ServiceRig rig;
  rig.open();
  const std::string id = rig.add(user("ana"), {"Ana lives in Graz"}).ids.front();
  UpdateRequest update;
  update.scope = user("ana");
  update.id = id;
  update.text = "Ana lives in Ljubljana";
  update.if_version = 7;
  EXPECT_EQ(rig.service->update(update, true, {}).status().code(), StatusCode::kConflict);
  update.if_version = 1;
  auto updated = rig.service->update(update, true, {});
  ASSERT_TRUE(updated.ok()) << updated.status().to_string();
  EXPECT_EQ(updated->version, 2U);
  const AskReply reply = rig.ask(user("ana"), "Where does Ana live?");
  ASSERT_EQ(reply.facts.size(), 1U);
  EXPECT_EQ(reply.facts[0].text, "Ana lives in Ljubljana");
  EXPECT_TRUE(reply.facts[0].injected);
  auto history = rig.service->history(user("ana"), id);
  ASSERT_TRUE(history.ok());
  ASSERT_EQ(history->size(), 2U);
  EXPECT_EQ((*history)[0].text, "Ana lives in Graz");
  EXPECT_FALSE((*history)[0].valid_to.empty());
  EXPECT_TRUE((*history)[1].valid_to.empty());
}

TEST(Add, DuplicatesAreNoOpsAndLongTextBecomesSeveralFacts) {
  ServiceRig rig;
  rig.open();
  const AddReply first = rig.add(user("ana"), {"Ana likes tea"});
  const AddReply again = rig.add(user("ana"), {"Ana likes tea"});
  EXPECT_EQ(again.facts_added, 0U);
  EXPECT_EQ(again.facts_existing, 1U);
  EXPECT_EQ(first.ids, again.ids);
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += "Sentence " + std::to_string(i) + " of a long story. ";
  }
  EXPECT_GT(rig.add(user("ana"), {text}).ids.size(), 2U);
}

TEST(Add, BadItemsAreReportedAndTheOthersTaken) {
  ServiceRig rig;
  rig.open();
  const std::vector<FactInput> facts = {
      {"good one", "{}", "", {}},  {"", "{}", "", {}},
      {"bad \xff", "{}", "", {}},  {"bad time", "{}", "yesterday", {}},
      {"bad meta", "[1]", "", {}}, {"good two", "{}", "2024-02-29", {}}};
  auto reply = rig.service->add(user("ana"), {}, facts, true, {});
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->facts_added, 2U);
  std::vector<std::uint64_t> items;
  for (const ItemError& error : reply->errors) {
    EXPECT_EQ(error.code, StatusCode::kInvalidArgument);
    items.push_back(error.item);
  }
  std::sort(items.begin(), items.end());
  EXPECT_EQ(items, (std::vector<std::uint64_t>{1, 2, 3, 4}));
}

TEST(Add, CancelledImportGoesOnFromWhereItStopped) {
  ServiceRig rig;
  rig.open();
  std::vector<FactInput> facts;
  for (int i = 0; i < 300; ++i) {
    facts.push_back({"fact number " + std::to_string(i), "{}", "", {}});
  }
  std::atomic<bool> cancelled{false};
  WorkControl control;
  control.cancelled = &cancelled;
  control.progress = [&](const std::string&, std::uint64_t done, std::uint64_t) {
    cancelled = done >= 100;
  };
  auto first = rig.service->add(user("ana"), {}, facts, true, control);
  ASSERT_TRUE(first.ok());
  EXPECT_LT(first->facts_added, 300U);
  EXPECT_EQ(first->facts_encoded, 0U);
  auto second = rig.service->add(user("ana"), {}, facts, true, {});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(first->facts_added + second->facts_added, 300U);
  EXPECT_EQ(second->facts_encoded, 300U);
}

TEST(Encode, FailedRunsLeaveFactsAsTextAndAreTriedAgain) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"zero"});  // loads the engine
  rig.engine->fail_next_runs(1, unavailable("the engine stumbled"));
  const AddReply reply = rig.add(user("ana"), {"one", "two"});
  EXPECT_EQ(reply.facts_encoded, 0U);
  EXPECT_FALSE(reply.note.empty());
  rig.clock_ahead_us = 2'000'000;
  EXPECT_EQ(rig.service->encode_pending({})->encoded, 2U);
}

// A delete that comes while a fact that sees the deleted one is being encoded: the record must not
// survive.
TEST(Encode, CommitLosesAgainstADeleteOfWhatItSaw) {
  ServiceRig rig;
  rig.open();
  const std::string seen = rig.add(user("ana"), {"the seen fact"}).ids.front();
  rig.add(user("ana"), {"the seeing fact"}, false);
  rig.engine->set_delay(std::chrono::milliseconds(300));
  std::thread encoder([&] { EXPECT_TRUE(rig.service->encode_pending({}).ok()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::vector<std::string> ids = {seen};
  auto receipt = rig.service->remove(user("ana"), ids, false, false, {});
  ASSERT_TRUE(receipt.ok());
  encoder.join();
  rig.engine->set_delay(std::chrono::milliseconds(0));
  // It was encoded again at once, behind what is left.
  const std::vector<FakeCall> calls = rig.engine->calls();
  ASSERT_GE(calls.size(), 2U);
  EXPECT_NE(prompt_text(calls[calls.size() - 2]).find("the seen fact"), std::string::npos);
  EXPECT_EQ(prompt_text(calls.back()).find("the seen fact"), std::string::npos);
  const AskReply reply = rig.ask(user("ana"), "fact");
  ASSERT_EQ(reply.facts.size(), 1U);
  EXPECT_TRUE(reply.facts[0].injected);
  EXPECT_EQ(rig.queue().pending + rig.queue().waiting, 0U);
}

}  // namespace
}  // namespace inferscale
