// All of the service at once; for the thread sanitizer above all.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

/// What the threads share. An actor is called again and again by a thread of its own, with a number
/// that differs from call to call.
struct Stage {
  ServiceRig& rig;
  std::atomic<int> answered{0};
  std::atomic<int> erased{0};
};
using Actor = std::function<void(Stage&, std::mt19937&, int)>;

Scope some_user(std::mt19937& random) { return user("u" + std::to_string(random() % 2)); }

/// Whether a write that meets other writers may end so.
bool is_race(const Status& status) {
  return status.code() == StatusCode::kNotFound || status.code() == StatusCode::kConflict;
}

std::string any_fact(Stage& stage, const Scope& scope, std::mt19937& random) {
  const auto page = stage.rig.service->list(scope, "", 50, "");
  EXPECT_TRUE(page.ok()) << page.status().to_string();
  return page.ok() && !page->facts.empty() ? page->facts[random() % page->facts.size()].id : "";
}

void add(Stage& stage, std::mt19937& random, int round) {
  const std::string number = std::to_string(round) + " " + std::to_string(random());
  const std::vector<TurnInput> turns = {{"t" + number, "", "user", "said " + number, ""}};
  const std::vector<FactInput> facts = {
      {"fact " + number, round % 2 == 0 ? R"({"even":true})" : "{}", "", {"t" + number}}};
  const auto added = stage.rig.service->add(some_user(random), turns, facts, round % 4 == 0, {});
  ASSERT_TRUE(added.ok()) << added.status().to_string();
}

void update(Stage& stage, std::mt19937& random, int round) {
  UpdateRequest request;
  request.scope = some_user(random);
  request.id = any_fact(stage, request.scope, random);
  request.text = "updated " + std::to_string(round) + " " + std::to_string(random());
  if (!request.id.empty()) {
    const auto updated = stage.rig.service->update(request, round % 4 == 0, {});
    ASSERT_TRUE(updated.ok() || is_race(updated.status())) << updated.status().to_string();
  }
}

void remove(Stage& stage, std::mt19937& random, int round) {
  DeleteRequest request;
  request.scope = some_user(random);
  request.old_versions = round % 3 == 1;
  if (round % 5 == 4) {
    request.filter = R"({"even":true})";
  } else if (const std::string id = any_fact(stage, request.scope, random); !id.empty()) {
    request.ids = {id};
  } else {
    return;
  }
  const auto receipt = stage.rig.service->remove(request, round % 2 == 0, {});
  if (receipt.ok()) {
    EXPECT_TRUE(receipt->verified) << receipt->note;
    ++stage.erased;
  } else {
    ASSERT_TRUE(is_race(receipt.status())) << receipt.status().to_string();
  }
}

void ask(Stage& stage, std::mt19937& random, int round) {
  AskRequest request;
  request.scope = some_user(random);
  request.question = "which fact " + std::to_string(round);
  const auto reply = stage.rig.service->ask(request);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply->answer.find("WRONG"), std::string::npos) << reply->answer;
  ++stage.answered;
}

void chat(Stage& stage, std::mt19937& random, int) {
  ChatOptions options;
  options.scope = some_user(random);
  auto chat = stage.rig.service->open_chat(options);
  ASSERT_TRUE(chat.ok()) << chat.status().to_string();
  for (int turn = 0; turn < 3; ++turn) {
    const auto reply = (*chat)->say("and fact " + std::to_string(turn), {}, nullptr);
    ASSERT_TRUE(reply.ok()) << reply.status().to_string();
    EXPECT_EQ(reply->answer.find("WRONG"), std::string::npos) << reply->answer;
  }
}

void look(Stage& stage, std::mt19937& random, int) {
  ASSERT_TRUE(stage.rig.service->stats().ok());
  ASSERT_TRUE(stage.rig.service->search(some_user(random), "fact", 5, "").ok());
}

void encode(Stage& stage, std::mt19937&, int) {
  const auto reply = stage.rig.service->encode_pending({});
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
}

void export_scope(Stage& stage, std::mt19937& random, int) {
  std::uint64_t promised = 0;
  std::uint64_t given = 0;
  ExportSink sink;
  sink.begin = [&](const ExportCounts& counts) {
    promised = counts.facts;
    return Status();
  };
  sink.turn = [](const TurnView&) { return Status(); };
  sink.fact = [&](const ExportedFact&) {
    ++given;
    return Status();
  };
  const Status status = stage.rig.service->export_scope(some_user(random), sink, {});
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(given, promised) << "an export is of one moment";
}

TEST(Stress, ConcurrentUseStaysRightAndClean) {
  ServiceRig rig;
  // So that records are evicted from memory and from disk, whose segments are compacted.
  rig.options.host_budget_bytes = 64U << 10;
  rig.options.disk_budget_bytes = 256U << 10;
  rig.options.encode_in_background = true;
  rig.open();
  rig.add(user("u0"), {"warm up"});
  Stage stage{rig};
  // Whatever else may run beside the others joins here.
  const std::vector<Actor> actors = {add, add,  update, remove, ask,
                                     ask, chat, look,   encode, export_scope};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < actors.size(); ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<std::mt19937::result_type>(i));
      for (int round = 0; round < 15 && !::testing::Test::HasFatalFailure(); ++round) {
        actors[i](stage, random, round);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(stage.answered.load(), 30);
  EXPECT_GT(stage.erased.load(), 0);
  // At rest, all that is left is encoded and answers are right.
  rig.clock_ahead_us = 3'600'000'000;
  ASSERT_TRUE(rig.service->encode_pending({}).ok());
  EXPECT_EQ(rig.queue().pending, 0U);
  for (const char* name : {"u0", "u1"}) {
    const AskReply reply = rig.ask(user(name), "fact");
    EXPECT_EQ(reply.answer.find("WRONG"), std::string::npos) << reply.answer;
  }
}

}  // namespace
}  // namespace inferscale
