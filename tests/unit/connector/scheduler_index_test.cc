#include "connector/scheduler_index.h"

#include <gtest/gtest.h>

#include "unit/connector/index_fixture.h"

namespace inferscale::testing {
namespace {

const Tokens kHeader = {1, 2, 3, 4, 5};
const Tokens kQuestion = {70, 71, 72};

TEST(SchedulerIndex, NumbersOfRanksAreBounded) {
  EXPECT_EQ(SchedulerIndex::create(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SchedulerIndex::create(1025).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(SchedulerIndex::create(1024).ok());
  const auto index = make_index(2);
  EXPECT_EQ(index->add(2, fact(1)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index->drop(2, {}).code(), StatusCode::kInvalidArgument);
  IndexedRecord empty = fact(1);
  empty.tokens.clear();
  EXPECT_EQ(index->add(0, empty).status().code(), StatusCode::kInvalidArgument);
}

TEST(SchedulerIndex, HeaderRecordAndFactsFollowEachOther) {
  const auto index = make_index();
  add_all(*index, {header(), fact(1), fact(2)});
  const Tokens prompt = join({kHeader, fact(1).tokens, fact(2).tokens, kQuestion});
  const Match match = index->match(prompt, asking_for({header(), fact(1), fact(2)}));
  EXPECT_EQ(describe(match), "0..5 5..9 9..13");
  EXPECT_EQ(match.segments[0].key, header().key);
  EXPECT_EQ(match.segments[2].key, fact(2).key);
}

TEST(SchedulerIndex, FactsBehindACachedHeaderStandWhereTheyFirstOccur) {
  const auto index = make_index();
  add_all(*index, {fact(1), fact(2)});
  const Tokens prompt = join({kHeader, fact(1).tokens, fact(2).tokens, kQuestion});
  // What the caller must have in its cache is everything before `begin`: 5 tokens, and how many of
  // the rest it has already is its own business.
  EXPECT_EQ(describe(index->match(prompt, asking_for({fact(1), fact(2)}))), "5..9 9..13");
}

TEST(SchedulerIndex, AHeaderWithoutARecordIsPassedOver) {
  const auto index = make_index();
  add_all(*index, {fact(1)});
  const Tokens prompt = join({kHeader, fact(1).tokens, kQuestion});
  EXPECT_EQ(describe(index->match(prompt, asking_for({header(), fact(1)}))),
            "5..9; record_missing 1");
  EXPECT_EQ(describe(index->match(prompt, asking_for({header()}))), "; record_missing 1");
}

TEST(SchedulerIndex, TheRunEndsAtTheFirstMiss) {
  const auto index = make_index();
  add_all(*index, {header(), fact(1), fact(3), fact(4)});
  const Tokens prompt =
      join({kHeader, fact(1).tokens, fact(2).tokens, fact(3).tokens, fact(4).tokens, kQuestion});
  EXPECT_EQ(
      describe(index->match(prompt, asking_for({header(), fact(1), fact(2), fact(3), fact(4)}))),
      "0..5 5..9; record_missing 1; behind_gap 2");
}

TEST(SchedulerIndex, TokensBetweenTwoRecordsEndTheRun) {
  const auto index = make_index();
  add_all(*index, {header(), fact(1), fact(2), fact(3)});
  const Tokens prompt = join({kHeader, fact(1).tokens, {60}, fact(2).tokens, fact(3).tokens});
  EXPECT_EQ(describe(index->match(prompt, asking_for({header(), fact(1), fact(2), fact(3)}))),
            "0..5 5..9; wrong_tokens 1; behind_gap 1");
}

TEST(SchedulerIndex, OtherTokensAreNeverMatched) {
  const auto index = make_index();
  add_all(*index, {header(), fact(1)});
  for (std::size_t i = 0; i < 4; ++i) {
    Tokens prompt = join({kHeader, fact(1).tokens, kQuestion});
    ++prompt[5 + i];
    EXPECT_EQ(describe(index->match(prompt, asking_for({header(), fact(1)}))),
              "0..5; wrong_tokens 1");
    EXPECT_EQ(describe(index->match(prompt, asking_for({fact(1)}))), "; wrong_tokens 1");
  }
  Tokens prompt = join({kHeader, fact(1).tokens});
  ++prompt[0];
  EXPECT_EQ(describe(index->match(prompt, asking_for({header(), fact(1)}))),
            "; wrong_tokens 1; behind_gap 1");
  // A prompt that ends within a record.
  EXPECT_EQ(describe(index->match(std::span(prompt).first(8), asking_for({fact(1)}))),
            "; wrong_tokens 1");
  EXPECT_EQ(describe(index->match({}, asking_for({header(), fact(1)}))),
            "; wrong_tokens 1; behind_gap 1");
}

TEST(SchedulerIndex, APrefixRecordStandsAtTheBeginningOnly) {
  const auto index = make_index();
  add_all(*index, {header(), fact(1)});
  const Tokens later = join({{9}, kHeader, fact(1).tokens});
  EXPECT_EQ(describe(index->match(later, asking_for({header(), fact(1)}))),
            "; wrong_tokens 1; behind_gap 1");
  const Tokens second = join({fact(1).tokens, kHeader});
  EXPECT_EQ(describe(index->match(second, asking_for({fact(1), header()}))),
            "0..4; wrong_context 1");
}

TEST(SchedulerIndex, OfSeveralPlacesTheOneWithTheLongestRunCounts) {
  const auto index = make_index();
  add_all(*index, {fact(1), fact(2)});
  const Tokens prompt = join({kHeader,
                              fact(1).tokens,
                              {60},
                              fact(1).tokens,
                              fact(2).tokens,
                              {61},
                              fact(1).tokens,
                              fact(2).tokens});
  EXPECT_EQ(describe(index->match(prompt, asking_for({fact(1), fact(2)}))), "10..14 14..18");
  EXPECT_EQ(describe(index->match(prompt, asking_for({fact(1)}))), "5..9");
}

TEST(SchedulerIndex, ScopesDecideWhatMayBeUsed) {
  const Scope agent{"acme", "zoe", "tutor", ""};
  const Scope other_agent{"acme", "zoe", "cook", ""};
  const Scope other_user{"acme", "max", "", ""};
  const Scope tenant{"acme", "", "", ""};
  const Scope other_tenant{"corp", "", "", ""};
  const auto index = make_index();
  for (const Scope& scope : {agent, other_agent, other_user, other_tenant}) {
    index->learn_scope(scope);
  }
  const Tokens prompt = join({fact(1).tokens});
  const auto outcome = [&](const Scope& owner, const Scope& request) {
    const auto fresh = make_index();
    for (const Scope& scope : {agent, other_agent, other_user, other_tenant}) {
      fresh->learn_scope(scope);
    }
    add_all(*fresh, {fact(1, owner)});
    return describe(fresh->match(prompt, asking_for({fact(1)}, request)));
  };
  for (const Scope& owner : {kUser, agent, other_agent, system_scope(), tenant}) {
    EXPECT_EQ(outcome(owner, kUser), "0..4") << to_string(owner);
  }
  EXPECT_EQ(outcome(other_user, kUser), "; wrong_scope 1");
  EXPECT_EQ(outcome(other_tenant, kUser), "; wrong_scope 1");
  EXPECT_EQ(outcome(agent, agent), "0..4");
  EXPECT_EQ(outcome(other_agent, agent), "; wrong_scope 1");
  EXPECT_EQ(outcome(kUser, agent), "; wrong_scope 1");
  EXPECT_EQ(outcome(Scope{"acme", "zoe", "unheard", ""}, kUser), "; wrong_scope 1")
      << "a scope that nobody has told";
}

TEST(SchedulerIndex, AForeignHeaderIsNotPassedOver) {
  const auto index = make_index();
  add_all(*index, {header(Scope{"corp", "", "", ""}), fact(1)});
  const Tokens prompt = join({kHeader, fact(1).tokens});
  EXPECT_EQ(describe(index->match(prompt, asking_for({header(), fact(1)}))),
            "; wrong_scope 1; behind_gap 1");
}

TEST(SchedulerIndex, ReadyMeansOnEveryRank) {
  const auto index = make_index(3);
  const Tokens prompt = fact(1).tokens;
  for (std::uint32_t rank : {0U, 2U, 2U}) {
    ASSERT_TRUE(*index->add(rank, fact(1)));
    EXPECT_FALSE(index->contains(fact(1).key));
    EXPECT_EQ(index->size(), 0U);
    EXPECT_EQ(describe(index->match(prompt, asking_for({fact(1)}))), "; record_missing 1");
  }
  ASSERT_TRUE(*index->add(1, fact(1)));
  EXPECT_TRUE(index->contains(fact(1).key));
  EXPECT_EQ(index->size(), 1U);
  EXPECT_EQ(describe(index->match(prompt, asking_for({fact(1)}))), "0..4");

  const RecordKey keys[] = {fact(1).key, fact(2).key};
  ASSERT_TRUE(index->drop(2, keys).ok());
  EXPECT_FALSE(index->contains(fact(1).key));
  EXPECT_EQ(index->size(), 0U);
  ASSERT_TRUE(index->drop(2, keys).ok());
  ASSERT_TRUE(*index->add(2, fact(1)));
  EXPECT_TRUE(index->contains(fact(1).key));
}

TEST(SchedulerIndex, RanksThatDisagreeMakeARecordUnusable) {
  const auto index = make_index(2);
  IndexedRecord other = fact(1);
  ++other.tokens[3];
  ASSERT_TRUE(*index->add(0, fact(1)));
  EXPECT_FALSE(*index->add(1, other));
  EXPECT_FALSE(*index->add(1, fact(1)) && index->contains(fact(1).key));
  for (const Tokens& prompt : {fact(1).tokens, other.tokens}) {
    EXPECT_EQ(describe(index->match(prompt, asking_for({fact(1)}))), "; record_missing 1");
  }
}

TEST(SchedulerIndex, ErasedKeysStayErasedUntilTheyAreExpected) {
  const auto index = make_index(2);
  add_all(*index, {fact(1), fact(2)}, 2);
  const RecordKey keys[] = {fact(1).key, fact(7).key};
  EXPECT_EQ(index->erase(keys), 1U);
  EXPECT_FALSE(index->contains(fact(1).key));
  EXPECT_TRUE(index->contains(fact(2).key));
  EXPECT_EQ(index->size(), 1U);
  // What a rank says late, of a record that was there and of one that came too late.
  EXPECT_FALSE(*index->add(0, fact(1)));
  EXPECT_FALSE(*index->add(0, fact(7)));
  index->expect(fact(1).key, fact(1).scope);
  EXPECT_TRUE(*index->add(0, fact(1)));
  EXPECT_TRUE(*index->add(1, fact(1)));
  EXPECT_TRUE(index->contains(fact(1).key));
  EXPECT_FALSE(*index->add(0, fact(7)));
}

TEST(SchedulerIndex, AnOwnerIsErasedWithWhatIsStillCaptured) {
  const Scope agent{"acme", "zoe", "tutor", "r1"};
  const Scope max{"acme", "max", "", ""};
  const Scope tenant{"acme", "", "", ""};
  const auto index = make_index(2);
  index->learn_scope(agent);
  index->learn_scope(max);
  add_all(*index, {fact(1), fact(2, agent), fact(3, max), fact(4, tenant), header()}, 2);
  ASSERT_TRUE(*index->add(0, fact(5, agent)));       // on one rank so far
  index->expect(fact(6).key, fact(6, agent).scope);  // on none
  index->expect(fact(7).key, fact(7, max).scope);

  const std::vector<RecordKey> erased = index->erase_owner("acme", "zoe");
  std::vector<RecordKey> expected = {fact(1).key, fact(2).key, fact(5).key, fact(6).key};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(erased, expected);
  EXPECT_EQ(index->size(), 3U);
  EXPECT_FALSE(*index->add(0, fact(6, agent)));
  EXPECT_FALSE(*index->add(1, fact(5, agent)));
  EXPECT_TRUE(*index->add(0, fact(7, max)));
  EXPECT_TRUE(index->erase_owner("acme", "zoe").empty());
  EXPECT_EQ(index->erase_owner("acme", "").size(), 1U) << "what belongs to the tenant as a whole";
  EXPECT_EQ(index->erase_owner("", "").size(), 1U) << "the system's";
}

TEST(SchedulerIndex, NothingToInjectIsNoMatch) {
  const auto index = make_index();
  add_all(*index, {header(), fact(1)});
  EXPECT_EQ(describe(index->match(join({kHeader, fact(1).tokens}), asking_for({}))), "");
}

TEST(SchedulerIndex, TheSameRecordMayStandTwice) {
  const auto index = make_index();
  add_all(*index, {fact(1)});
  const Tokens prompt = join({fact(1).tokens, fact(1).tokens, kQuestion});
  EXPECT_EQ(describe(index->match(prompt, asking_for({fact(1), fact(1)}))), "0..4 4..8");
}

TEST(SchedulerIndex, FourThousandKeys) {
  constexpr std::uint32_t kKeys = 4096;
  const auto index = make_index();
  std::vector<IndexedRecord> records = {header()};
  std::vector<Tokens> parts = {kHeader};
  for (std::uint32_t i = 1; i < kKeys; ++i) {
    records.push_back(fact(i));
    parts.push_back(records.back().tokens);
  }
  add_all(*index, records);
  EXPECT_EQ(index->size(), kKeys);
  Tokens prompt = join(parts);
  const Match whole = index->match(prompt, asking_for(records));
  EXPECT_EQ(whole.segments.size(), kKeys);
  EXPECT_EQ(whole.end, prompt.size());
  EXPECT_TRUE(whole.fallbacks.empty());
  ++prompt[5 + 4 * 1000];
  const Match part = index->match(prompt, asking_for(records));
  EXPECT_EQ(part.segments.size(), 1001U);
  ASSERT_EQ(part.fallbacks.size(), 2U);
  EXPECT_EQ(part.fallbacks[0].count + part.fallbacks[1].count, kKeys - 1001);
}

TEST(SchedulerIndex, MatchingChangesNothing) {
  const auto index = make_index();
  add_all(*index, {header(), fact(1)});
  const Tokens prompt = join({kHeader, fact(1).tokens, kQuestion});
  const RequestParams params = asking_for({header(), fact(1), fact(2)});
  const std::string first = describe(index->match(prompt, params));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(describe(index->match(prompt, params)), first);
  }
  EXPECT_EQ(index->size(), 2U);
}

}  // namespace
}  // namespace inferscale::testing
