// What waits to be encoded: in which order, how often a failure is tried again, and the thread that
// does it beside other work.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "memory/encode_retry.h"
#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

constexpr TimestampUs kSecond = 1'000'000;

std::vector<std::string> numbered(const std::string& name, int count) {
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    texts.push_back(name + " number " + std::to_string(i));
  }
  return texts;
}

bool is_encoding(const FakeCall& call) { return call.captures > 0 && call.max_tokens == 0; }

std::vector<FakeCall> encoding_calls(const FakeEngine& engine) {
  std::vector<FakeCall> calls = engine.calls();
  std::erase_if(calls, [](const FakeCall& call) { return !is_encoding(call); });
  return calls;
}

bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

TEST(RetryDelay, DoublesUpToAnHourAndIsSpread) {
  EXPECT_EQ(retry_delay_us(1, 0), kSecond / 2);
  EXPECT_EQ(retry_delay_us(1, 1U << 31), kSecond);
  EXPECT_LT(retry_delay_us(1, UINT32_MAX), kSecond + kSecond / 2);
  EXPECT_EQ(retry_delay_us(5, 1U << 31), 16 * kSecond);
  EXPECT_EQ(retry_delay_us(60, 1U << 31), 3600 * kSecond);
  EXPECT_LT(retry_delay_us(UINT32_MAX, UINT32_MAX), kMaxEncodeRetryUs);
  EXPECT_EQ(retry_delay_us(0, 0), kSecond / 2);
}

TEST(EncodeQueue, AFailureIsNotTriedAgainBeforeItIsDueNorAfterARestart) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"zero"});
  rig.engine->fail_next_runs(1, unavailable("the engine stumbled"));
  const std::string id = rig.add(user("ana"), {"one"}).ids.front();
  EncodeQueueStats queue = rig.queue();
  EXPECT_EQ(queue.pending, 1U);
  EXPECT_EQ(queue.waiting, 1U);
  EXPECT_EQ(queue.given_up, 0U);
  EXPECT_NE(queue.last_error.find("stumbled"), std::string::npos);
  EXPECT_FALSE(queue.next_try.empty());
  ASSERT_EQ(queue.failures.size(), 1U);
  EXPECT_EQ(queue.failures[0].id, id);
  EXPECT_EQ(queue.failures[0].attempts, 1U);

  rig.open();
  ASSERT_TRUE(rig.service->encode_pending({}).ok());
  EXPECT_TRUE(encoding_calls(*rig.engine).empty()) << "it was tried before it was due";
  EXPECT_EQ(rig.ask(user("ana"), "one").facts.size(), 2U) << "usable as text";
  ASSERT_TRUE(rig.service->encode_wanted({}).ok());
  EXPECT_TRUE(encoding_calls(*rig.engine).empty()) << "nor because an answer wanted it";
  rig.clock_ahead_us = 2 * kSecond;
  EXPECT_EQ(rig.service->encode_pending({})->encoded, 1U);
  queue = rig.queue();
  EXPECT_EQ(queue.pending + queue.waiting, 0U);
  EXPECT_TRUE(queue.last_error.empty());
}

TEST(EncodeQueue, EachFailureDoublesTheWait) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"zero"});
  rig.engine->fail_next_runs(1000, unavailable("the engine stumbled"));
  rig.add(user("ana"), {"one"});
  for (int attempt = 1; attempt <= 5; ++attempt) {
    EXPECT_EQ(rig.queue().failures.at(0).attempts, static_cast<std::uint32_t>(attempt));
    rig.clock_ahead_us += (kSecond << (attempt - 1)) / 2 - kSecond / 10;
    rig.engine->clear_calls();
    ASSERT_TRUE(rig.service->encode_pending({}).ok());
    EXPECT_TRUE(rig.engine->calls().empty()) << "attempt " << attempt << " came early";
    // In all a tenth of a second more than the longest wait, which is one and a half times the
    // usual.
    rig.clock_ahead_us += (kSecond << (attempt - 1)) + kSecond / 5;
    EXPECT_EQ(rig.service->encode_pending({})->failed, 1U);
  }
}

TEST(EncodeQueue, ATextThatIsTooLongIsGivenUpAndShown) {
  ServiceRig rig;
  rig.open();
  const std::string id = rig.add(user("ana"), {std::string(1500, 'x')}).ids.front();
  for (int i = 0; i < 3; ++i) {
    rig.clock_ahead_us += 10'000 * kSecond;
    EXPECT_EQ(rig.service->encode_pending({})->failed, 0U);
  }
  const EncodeQueueStats queue = rig.queue();
  EXPECT_EQ(queue.given_up, 1U);
  EXPECT_EQ(queue.waiting, 0U);
  EXPECT_TRUE(queue.next_try.empty());
  ASSERT_EQ(queue.failures.size(), 1U);
  EXPECT_EQ(queue.failures[0].attempts, 1U);
  EXPECT_TRUE(queue.failures[0].next_try.empty());
  EXPECT_NE(queue.failures[0].error.find("shorter"), std::string::npos);
  rig.update(user("ana"), id, "short");
  EXPECT_EQ(rig.queue().pending, 0U);
}

TEST(EncodeQueue, AGroupThatFailsIsHalvedUntilTheOthersAreEncoded) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"zero"});
  rig.add(user("ana"), numbered("fact", 4), false);
  rig.engine->fail_next_runs(3, resource_exhausted("no cells"));  // all four, two, one
  const auto reply = rig.service->encode_pending({});
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->encoded, 3U);
  EXPECT_EQ(reply->failed, 1U);
  EXPECT_FALSE(reply->stopped_early);
}

TEST(EncodeQueue, AnEngineThatIsDownIsNotTriedForEveryFact) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), {"zero"});
  rig.add(user("ana"), numbered("fact", 200), false);
  rig.engine->fail_next_runs(1000, unavailable("down"));
  rig.engine->clear_calls();
  const auto reply = rig.service->encode_pending({});
  ASSERT_TRUE(reply.ok());
  EXPECT_TRUE(reply->stopped_early);
  EXPECT_EQ(rig.engine->calls().size(), 3U);
  EXPECT_EQ(rig.queue().pending, 200U);
  rig.engine->fail_next_runs(0, {});
  rig.clock_ahead_us = 2 * kSecond;
  EXPECT_EQ(rig.service->encode_pending({})->encoded, 200U);
}

TEST(EncodeQueue, NewFactsComeBeforeReencodes) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), numbered("old fact", 40));
  rig.options.encode_context = "header";  // all of them are outdated
  rig.open();
  rig.add(user("ana"), {"the new one"}, false);
  EXPECT_EQ(rig.service->encode_pending({})->encoded, 41U);
  EXPECT_NE(prompt_text(encoding_calls(*rig.engine).at(0)).find("the new one"), std::string::npos);
}

TEST(EncodeQueue, AFactThatIsAddedDuringReencodesWaitsForOneGroupOnly) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), numbered("old fact", 64));
  rig.options.encode_context = "header";
  rig.open();
  ASSERT_TRUE(rig.service->stats().ok());  // loads the engine
  rig.engine->set_delay(std::chrono::milliseconds(100));
  std::thread encoder([&] { EXPECT_EQ(rig.service->encode_pending({})->encoded, 65U); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  rig.add(user("ana"), {"the new one"}, false);
  encoder.join();
  const std::vector<FakeCall> calls = encoding_calls(*rig.engine);
  const auto found = std::find_if(calls.begin(), calls.end(), [](const FakeCall& call) {
    return prompt_text(call).find("the new one") != std::string::npos;
  });
  EXPECT_LE(found - calls.begin(), 2) << "of " << calls.size() << " groups";
}

// --- the worker ---

TEST(EncodeWorker, EncodesWhatWritesLeave) {
  ServiceRig rig;
  rig.options.encode_in_background = true;
  rig.open();
  const std::string id = rig.add(user("ana"), {"Ana lives in Graz", "Ana has a dog"}, false).ids[0];
  EXPECT_TRUE(comes_true([&] { return rig.queue().pending == 0; }));
  EXPECT_TRUE(rig.queue().background);
  EXPECT_EQ(injected_facts(rig.ask(user("ana"), "Ana")), 2U);
  rig.update(user("ana"), id, "Ana lives in Linz", false);
  EXPECT_TRUE(comes_true([&] { return rig.queue().pending == 0; }));
  rig.remove(delete_ids(user("ana"), {id}), false);
  EXPECT_TRUE(comes_true([&] { return rig.queue().pending == 0; }));
  EXPECT_EQ(injected_facts(rig.ask(user("ana"), "Ana")), 1U);
}

TEST(EncodeWorker, TakesUpWhatAnEarlierProcessLeft) {
  ServiceRig rig;
  rig.open();
  rig.add(user("ana"), numbered("fact", 3), false);
  rig.options.encode_in_background = true;
  rig.open();
  EXPECT_TRUE(comes_true([&] { return rig.queue().pending == 0; }));
}

TEST(EncodeWorker, TriesFailuresAgainByItself) {
  ServiceRig rig;
  rig.options.encode_in_background = true;
  rig.open();
  rig.add(user("ana"), {"zero"});
  rig.engine->fail_next_runs(1, unavailable("stumbled"));
  rig.add(user("ana"), {"one"}, false);
  EXPECT_TRUE(comes_true([&] { return rig.queue().pending == 0; }));
  EXPECT_EQ(injected_facts(rig.ask(user("ana"), "one")), 2U);
}

TEST(EncodeWorker, StopsInTheMiddleOfItsWorkAndLosesNothing) {
  ServiceRig rig;
  rig.options.encode_in_background = true;
  rig.open();
  rig.add(user("ana"), {"zero"});
  rig.engine->set_delay(std::chrono::seconds(20));
  rig.add(user("ana"), numbered("fact", 100), false);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const Stopwatch watch;
  rig.service.reset();
  EXPECT_LT(watch.elapsed_ms(), 5000);
  rig.options.encode_in_background = false;
  rig.open();
  EXPECT_EQ(rig.service->encode_pending({})->encoded, 100U) << "no failure was counted either";
}

TEST(EncodeWorker, AnAnswerWaitsForOneGroupAtMost) {
  ServiceRig rig;
  rig.options.encode_in_background = true;
  rig.open();
  rig.add(user("bob"), {"Bob has a cat"});
  rig.engine->set_delay(std::chrono::milliseconds(30));
  rig.add(user("ana"), numbered("fact", 400), false);
  ASSERT_TRUE(comes_true([&] { return !encoding_calls(*rig.engine).empty(); }));
  for (int i = 0; i < 3; ++i) {
    rig.engine->clear_calls();
    rig.ask(user("bob"), "Which animal?");
    const std::vector<FakeCall> calls = rig.engine->calls();
    const auto answer = std::find_if(calls.begin(), calls.end(),
                                     [](const FakeCall& call) { return call.max_tokens > 0; });
    // One that was under way; retrieval may take as long as another one.
    EXPECT_LE(answer - calls.begin(), 2);
  }
  EXPECT_GT(rig.queue().pending, 0U) << "else the worker was idle";
}

TEST(EncodeWorker, WithoutFactsNoModelIsLoaded) {
  ServiceRig rig;
  rig.options.encode_in_background = true;
  rig.open();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(rig.engine, nullptr);
}

TEST(EncodeWorker, AnAnswerThatMissesARecordWakesIt) {
  ServiceRig rig;
  rig.options.encode_in_background = true;
  rig.options.disk_budget_bytes = 0;  // records are in memory only
  rig.open();
  rig.add(user("ana"), {"Ana lives in Graz"});
  rig.options.encode_in_background = true;
  rig.open();  // the catalog names a record that is gone
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(injected_facts(rig.ask(user("ana"), "Ana")), 0U);
  EXPECT_TRUE(comes_true([&] { return injected_facts(rig.ask(user("ana"), "Ana")) == 1; }));
}

}  // namespace
}  // namespace inferscale
