// What a delete reaches, whom it counts, and what may go on meanwhile.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "memory/answer_registry.h"
#include "support/fault_injector.h"
#include "support/faulty_file_system.h"
#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

const Scope kAna = user("ana");

AskReply say(Chat& chat, const std::string& message) {
  auto reply = chat.say(message, {}, nullptr);
  EXPECT_TRUE(reply.ok()) << reply.status().to_string();
  return reply.ok() ? *reply : AskReply();
}

std::string id_of(ServiceRig& rig, const std::string& text, const std::string& metadata = "{}",
                  std::vector<std::string> turns = {}) {
  const std::vector<FactInput> facts = {{text, metadata, "", std::move(turns)}};
  auto reply = rig.service->add(kAna, {}, facts, true, {});
  EXPECT_TRUE(reply.ok()) << reply.status().to_string();
  return reply->ids.front();
}

TEST(Remove, ByFilterCountsFirstAndIsIdempotent) {
  ServiceRig rig;
  rig.open();
  id_of(rig, "one", R"({"city":"Graz"})");
  id_of(rig, "two", R"({"city":"Graz"})");
  id_of(rig, "three", R"({"city":"Linz"})");
  DeleteRequest request;
  request.scope = kAna;
  request.filter = R"({"city":"Graz"})";
  request.dry_run = true;
  const DeleteReceipt counted = rig.remove(request);
  EXPECT_EQ(counted.facts, 2U);
  EXPECT_EQ(counted.record_entries, 3U) << "the third saw them";
  EXPECT_EQ(counted.dependants, 1U);
  EXPECT_TRUE(counted.dry_run);
  EXPECT_FALSE(counted.verified);
  EXPECT_EQ(rig.ask(kAna, "one two three").facts.size(), 3U);
  request.dry_run = false;
  const DeleteReceipt receipt = rig.remove(request);
  EXPECT_EQ(receipt.facts, 2U);
  EXPECT_EQ(receipt.record_entries, 3U);
  EXPECT_EQ(receipt.records_disk, 3U);
  EXPECT_EQ(receipt.dependants_reencoded, 1U);
  EXPECT_TRUE(receipt.verified) << receipt.note;
  const DeleteReceipt again = rig.remove(request);
  EXPECT_EQ(again.facts + again.versions + again.record_entries, 0U);
  EXPECT_TRUE(again.verified);
  EXPECT_EQ(rig.ask(kAna, "one two three").facts.size(), 1U);
}

TEST(Remove, OfWhatIsGoneIsAnErrorForIdsAndZeroForAScope) {
  ServiceRig rig;
  rig.open();
  const std::string id = id_of(rig, "one");
  EXPECT_EQ(rig.remove(delete_ids(kAna, {id})).facts, 1U);
  EXPECT_EQ(rig.service->remove(delete_ids(kAna, {id}), true, {}).status().code(),
            StatusCode::kNotFound);
  DeleteRequest scope;
  scope.scope = kAna;
  EXPECT_EQ(rig.service->remove(scope, true, {}).status().code(), StatusCode::kInvalidArgument)
      << "nothing is chosen, which is not everything";
  scope.all_in_scope = true;
  const DeleteReceipt receipt = rig.remove(scope);
  EXPECT_EQ(receipt.facts + receipt.turns, 0U);
  EXPECT_TRUE(receipt.verified);
}

TEST(Remove, TurnsGoUnlessTheyAreCitedOrKept) {
  ServiceRig rig;
  rig.open();
  const std::vector<TurnInput> turns = {{"t1", "Ana", "user", "first words", ""},
                                        {"t2", "Ana", "user", "second words", ""},
                                        {"t3", "Ana", "user", "third words", ""}};
  ASSERT_TRUE(rig.service->add(kAna, turns, {}, true, {}).ok());
  const std::string a = id_of(rig, "one", "{}", {"t1", "t2"});
  const std::string b = id_of(rig, "two", "{}", {"t2"});
  EXPECT_EQ(rig.remove(delete_ids(kAna, {a})).turns, 1U);
  DeleteRequest keep = delete_ids(kAna, {b});
  keep.keep_turns = true;
  EXPECT_EQ(rig.remove(keep).turns, 0U);
  DeleteRequest all;
  all.scope = kAna;
  all.all_in_scope = true;
  EXPECT_EQ(rig.remove(all).turns, 2U);
}

TEST(Remove, OldVersionsAreServedThroughOthersUntilTheyAreErased) {
  ServiceRig rig;
  rig.open();
  const std::string a = id_of(rig, "Ana lives in Graz");
  const std::string b = id_of(rig, "Ana has a dog");
  rig.update(kAna, a, "Ana lives in Linz", false);
  AskReply reply = rig.ask(kAna, "Ana");
  EXPECT_EQ(injected_facts(reply), 1U) << "the record that saw Graz is in use";
  DeleteRequest request = delete_ids(kAna, {a});
  request.old_versions = true;
  const DeleteReceipt receipt = rig.remove(request, false);
  EXPECT_EQ(receipt.facts, 0U);
  EXPECT_EQ(receipt.history, 1U);
  EXPECT_EQ(receipt.record_entries, 2U);
  EXPECT_EQ(receipt.dependants, 1U);
  EXPECT_TRUE(receipt.verified) << receipt.note;
  EXPECT_EQ(rig.service->history(kAna, a)->size(), 1U);
  EXPECT_EQ(injected_facts(rig.ask(kAna, "Ana")), 0U) << "at once";
  ASSERT_TRUE(rig.service->encode_pending({}).ok());
  reply = rig.ask(kAna, "Ana");
  EXPECT_EQ(injected_facts(reply), 2U);
  EXPECT_EQ(reply.answer, rig.expected_answer());
  EXPECT_EQ(rig.service->get(kAna, b)->text, "Ana has a dog");
}

TEST(Update, ToWhatAnotherFactSaysIsAConflict) {
  ServiceRig rig;
  rig.open();
  const std::string a = id_of(rig, "Ana lives in Graz");
  const std::string b = id_of(rig, "Ana lives in Linz");
  UpdateRequest request;
  request.scope = kAna;
  request.id = b;
  request.text = "Ana lives in Graz";
  const auto refused = rig.service->update(request, true, {});
  EXPECT_EQ(refused.status().code(), StatusCode::kConflict);
  EXPECT_NE(refused.status().message().find(a), std::string::npos);
  request.text = "Ana lives in Linz";
  const auto unchanged = rig.service->update(request, true, {});
  ASSERT_TRUE(unchanged.ok());
  EXPECT_EQ(unchanged->version, 1U) << "nothing changes, so there is no new version";
  request.text = "Ana lives in Wels";
  request.if_version = 7;
  EXPECT_NE(rig.service->update(request, true, {}).status().message().find("version 1, not 7"),
            std::string::npos);
}

TEST(Update, MetadataIsCheckedBeforeModelsAreLoaded) {
  ServiceRig rig;
  rig.open();
  const std::vector<FactInput> facts = {{"one", "[1]", "", {}}};
  const auto added = rig.service->add(kAna, {}, facts, true, {});
  ASSERT_EQ(added->errors.size(), 1U);
  EXPECT_NE(added->errors[0].message.find("metadata"), std::string::npos);
  UpdateRequest request;
  request.scope = kAna;
  request.id = "f_x";
  request.text = "two";
  request.metadata = "{";
  EXPECT_EQ(rig.service->update(request, true, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.engine, nullptr);
}

// --- answers and conversations that use what is erased ---

TEST(RunningAnswers, MayFinishAndAreCounted) {
  ServiceRig rig;
  rig.open();
  const std::string used = id_of(rig, "Ana lives in Graz");
  const std::string other = id_of(rig, "unrelated");
  rig.engine->set_delay(std::chrono::milliseconds(500));
  AskReply reply;
  std::thread asking([&] { reply = rig.ask(kAna, "Where does Ana live?", 1); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const DeleteReceipt receipt = rig.remove(delete_ids(kAna, {used}), false);
  EXPECT_EQ(receipt.answers_running, 1U);
  EXPECT_EQ(receipt.chats_open, 0U);
  EXPECT_GE(receipt.records_in_use, 1U);
  EXPECT_TRUE(receipt.verified) << receipt.note;
  asking.join();
  EXPECT_EQ(reply.answer, rig.expected_answer()) << "it began before the delete";
  rig.engine->set_delay(std::chrono::milliseconds(0));
  EXPECT_EQ(rig.remove(delete_ids(kAna, {other})).answers_running, 0U);
}

TEST(RunningAnswers, ThatUseKvWhichSawTheErasedFactAreCounted) {
  ServiceRig rig;
  rig.open();
  const std::string seen = id_of(rig, "zebra");
  id_of(rig, "Ana lives in Graz");
  rig.engine->set_delay(std::chrono::milliseconds(500));
  std::thread asking([&] { EXPECT_EQ(injected_facts(rig.ask(kAna, "Ana lives", 1)), 1U); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(rig.remove(delete_ids(kAna, {seen}), false).answers_running, 1U);
  asking.join();
}

TEST(AnswerRegistry, AnAnswerThatWasPreparedAcrossAnEraseIsPreparedAgain) {
  AnswerRegistry registry;
  AnswerRegistry::Use use(registry, false);
  const std::array facts = {FactRef{"f_a", 2}};
  const std::array records = {RecordKey{}};
  const std::array erased = {ErasedFact{"f_a", Scope(), 3}};
  use.begin();
  EXPECT_EQ(registry.note_erased(erased, false, {}).answers, 0U) << "it has not said what it uses";
  EXPECT_FALSE(use.add(facts, records));
  use.begin();
  EXPECT_TRUE(use.add(facts, records));
  EXPECT_EQ(registry.note_erased(erased, true, {}).answers, 1U);
  const std::array newer = {ErasedFact{"f_a", Scope(), 2}};
  EXPECT_EQ(registry.note_erased(newer, true, {}).answers, 0U) << "it uses the live version";
  EXPECT_EQ(registry.note_erased({}, false, records).answers, 1U);
  use.end();
  EXPECT_EQ(registry.note_erased(erased, false, {}).answers, 0U);
}

TEST(AnswerRegistry, AConversationHoldsWhatItUsedUntilItStartsOver) {
  AnswerRegistry registry;
  AnswerRegistry::Use use(registry, true);
  const std::array facts = {FactRef{"f_a", 1}};
  const std::array erased = {ErasedFact{"f_a", Scope(), 1}};
  use.begin();
  EXPECT_TRUE(use.add(facts, {}));
  use.end();
  EXPECT_FALSE(use.holds_erased());
  const AnswerRegistry::Users users = registry.note_erased(erased, false, {});
  EXPECT_EQ(users.answers, 0U);
  EXPECT_EQ(users.conversations, 1U);
  EXPECT_TRUE(use.holds_erased());
  use.clear();
  EXPECT_FALSE(use.holds_erased());
  EXPECT_EQ(registry.note_erased(erased, false, {}).conversations, 0U);
}

/// The catalog has erased the fact although the call fails: no conversation may go on with it.
TEST(OpenChats, StartOverAlsoWhenTheTiersCouldNotBeWiped) {
  testing::FaultInjector faults;
  testing::FaultyFileSystem files(posix_file_system(), faults);
  ServiceRig rig;
  rig.files = &files;
  rig.open();
  const std::string id = id_of(rig, "Ana lives in Graz");
  ChatOptions options;
  options.scope = kAna;
  auto chat = rig.service->open_chat(options);
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(say(**chat, "Hello").facts.size(), 1U);
  faults.arm({.fault = testing::Fault::kIo, .at = 1, .until_healed = true});
  EXPECT_EQ(rig.service->remove(delete_ids(kAna, {id}), true, {}).status().code(),
            StatusCode::kUnavailable);
  faults.heal();
  rig.engine->clear_calls();
  const AskReply reply = say(**chat, "Where do I live?");
  EXPECT_EQ(fallback_count(reply, "chat_restarted_after_delete"), 1U);
  EXPECT_TRUE(reply.facts.empty());
  EXPECT_EQ(prompt_text(rig.engine->calls().at(0)).find("Graz"), std::string::npos);
  chat->reset();
  rig.service.reset();  // before the files that it writes to
}

TEST(OpenChats, StartOverWhenAnOldVersionThatTheyHoldIsErased) {
  ServiceRig rig;
  rig.open();
  const std::string id = id_of(rig, "Ana lives in Graz");
  ChatOptions options;
  options.scope = kAna;
  auto chat = rig.service->open_chat(options);
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(say(**chat, "Hello").facts.size(), 1U);
  rig.update(kAna, id, "Ana lives in Linz");
  AskReply reply = say(**chat, "Where do I live?");
  EXPECT_EQ(reply.facts.size(), 1U) << "the new version joins";
  EXPECT_EQ(fallback_count(reply, "chat_restarted_after_delete"), 0U) << "what was said stays";
  DeleteRequest request = delete_ids(kAna, {id});
  request.old_versions = true;
  EXPECT_EQ(rig.remove(request).chats_open, 1U);
  rig.engine->clear_calls();
  reply = say(**chat, "And now?");
  EXPECT_EQ(fallback_count(reply, "chat_restarted_after_delete"), 1U);
  const std::string prompt = prompt_text(rig.engine->calls().at(0));
  EXPECT_EQ(prompt.find("Graz"), std::string::npos);
  EXPECT_NE(prompt.find("Linz"), std::string::npos);
}

TEST(OpenChats, StartOverWhenTheirKvSawWhatIsErased) {
  ServiceRig rig;
  rig.open();
  const std::string seen = id_of(rig, "zebra");
  id_of(rig, "Ana lives in Graz");
  ChatOptions options;
  options.scope = kAna;
  options.k = 1;
  auto chat = rig.service->open_chat(options);
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(injected_facts(say(**chat, "Where does Ana live?")), 1U);
  EXPECT_EQ(rig.remove(delete_ids(kAna, {seen})).chats_open, 1U);
  EXPECT_EQ(fallback_count(say(**chat, "And now?"), "chat_restarted_after_delete"), 1U);
  chat->reset();
  const std::string last = id_of(rig, "Ana has a dog");
  EXPECT_EQ(rig.remove(delete_ids(kAna, {last})).chats_open, 0U);
}

}  // namespace
}  // namespace inferscale
