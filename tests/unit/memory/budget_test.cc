// Stores that outgrow their budgets: every answer stays right, and what gave way is said and comes
// back on demand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

constexpr std::size_t kFacts = 100;

std::string place(std::size_t i) { return fmt::format("place{}", i); }

std::vector<std::string> many_facts() {
  std::vector<std::string> facts;
  for (std::size_t i = 0; i < kFacts; ++i) {
    facts.push_back(fmt::format("Ana hid key number {} at {}", i, place(i)));
  }
  return facts;
}

const TierStats& tier(const StatsReply& stats, const std::string& name) {
  for (const TierStats& candidate : stats.kv.tiers) {
    if (candidate.name == name) {
      return candidate;
    }
  }
  throw std::logic_error("no tier " + name);
}

/// What the facts' records take, measured on a store with room for all.
std::uint64_t bytes_of_all_records() {
  ServiceRig rig;
  rig.open();
  EXPECT_EQ(rig.add(user("ana"), many_facts()).facts_encoded, kFacts);
  return tier(*rig.service->stats(), "host").bytes;
}

/// Asks for each fact by its own words; the answer must be that of the prompt, whatever was
/// injected. Returns how many facts were injected in all.
std::size_t ask_for_each(ServiceRig& rig, const std::string& reason) {
  std::size_t injected = 0;
  for (std::size_t i = 0; i < kFacts; ++i) {
    const AskReply reply = rig.ask(user("ana"), place(i), 4);
    EXPECT_EQ(reply.answer, rig.expected_answer());
    bool found = false;
    for (const UsedFact& fact : reply.facts) {
      found |= fact.text.ends_with(fmt::format(" {}", place(i)));
    }
    EXPECT_TRUE(found) << place(i);
    injected += injected_facts(reply);
    EXPECT_EQ(injected_facts(reply) + fallback_count(reply, reason), reply.facts.size());
  }
  return injected;
}

TEST(Budget, AStoreTenTimesItsHostBudgetServesEveryQuestion) {
  ServiceRig rig;
  rig.options.host_budget_bytes = bytes_of_all_records() / 10;
  rig.open();
  ASSERT_EQ(rig.add(user("ana"), many_facts()).facts_encoded, kFacts);
  rig.open();  // nothing in memory
  EXPECT_EQ(ask_for_each(rig, "none"), 4 * kFacts);
  const StatsReply stats = *rig.service->stats();
  EXPECT_LE(tier(stats, "host").bytes, tier(stats, "host").budget_bytes);
  EXPECT_GT(tier(stats, "host").evictions, 0U);
  EXPECT_GE(tier(stats, "disk").records, kFacts);
  EXPECT_EQ(stats.facts_pending, 0U);
}

TEST(Budget, AStoreThatOutgrowsItsDiskSaysSoAndEncodesAgainOnDemand) {
  ServiceRig rig;
  const std::uint64_t all = bytes_of_all_records();
  rig.options.host_budget_bytes = all / 20;
  rig.options.disk_budget_bytes = all / 2;
  rig.open();
  ASSERT_EQ(rig.add(user("ana"), many_facts()).facts_encoded, kFacts);
  const StatsReply stats = *rig.service->stats();
  EXPECT_LE(tier(stats, "disk").bytes, tier(stats, "disk").budget_bytes);
  EXPECT_GT(tier(stats, "disk").evictions, 0U);

  const std::string question = place(0);
  AskReply reply = rig.ask(user("ana"), question, 4);
  EXPECT_EQ(reply.answer, rig.expected_answer());
  ASSERT_GT(fallback_count(reply, "record_evicted"), 0U) << "the oldest fact should have given way";
  const auto encoded = rig.service->encode_wanted({});
  ASSERT_TRUE(encoded.ok()) << encoded.status().to_string();
  EXPECT_EQ(encoded->encoded, fallback_count(reply, "record_evicted"));
  reply = rig.ask(user("ana"), question, 4);
  EXPECT_EQ(injected_facts(reply), reply.facts.size()) << "encoded again, and injected";
  EXPECT_EQ(reply.answer, rig.expected_answer());
  EXPECT_LT(ask_for_each(rig, "record_evicted"), 4 * kFacts);
}

}  // namespace
}  // namespace inferscale
