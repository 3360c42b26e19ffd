// Which record stands for which fact version, and what has to be encoded.
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

const Scope kAlice = user_scope("alice");

TEST_P(CatalogSuite, KeepsARecordEntry) {
  const std::string a = add("a");
  const std::string b = add("b");
  unwrap(catalog().add_turns(std::vector{Turn{"D1:1", kAlice, "", "", "", 0, 0}}));
  unwrap(catalog().commit_record(entry(a, 10)));
  RecordEntry full = entry(b, 20, {a});
  full.attended_turns = {"D1:1"};
  full.attended_records = {RecordKey{hash_of(10)}};
  EXPECT_FALSE(unwrap(catalog().commit_record(full)).has_value());
  reopen();
  const std::optional<RecordEntry> kept = record_of(b);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->fact, full.fact);
  EXPECT_EQ(kept->model_fingerprint, full.model_fingerprint);
  EXPECT_EQ(kept->context, full.context);
  EXPECT_EQ(kept->key, full.key);
  EXPECT_EQ(kept->context_id, full.context_id);
  EXPECT_EQ(kept->scope, full.scope);
  EXPECT_EQ(kept->n_tokens, 28U);
  EXPECT_EQ(kept->attended_facts, full.attended_facts);
  EXPECT_EQ(kept->attended_turns, full.attended_turns);
  EXPECT_EQ(kept->attended_records, full.attended_records);
  const FactRef ref{b, 1};
  EXPECT_FALSE(unwrap(catalog().records_of(std::span(&ref, 1), hash_of(1))).front().has_value())
      << "another model";
  EXPECT_THAT(unwrap(catalog().all_record_keys()),
              UnorderedElementsAre(RecordKey{hash_of(10)}, RecordKey{hash_of(20)}));
}

TEST_P(CatalogSuite, HeaderRecordsAreKeptByKey) {
  RecordEntry header;
  header.model_fingerprint = kModel;
  header.context = "prefix";
  header.key = RecordKey{hash_of(5)};
  header.scope = scope_hash(system_scope());
  EXPECT_FALSE(unwrap(catalog().commit_record(header)).has_value());
  EXPECT_FALSE(unwrap(catalog().commit_record(header)).has_value());
  EXPECT_EQ(unwrap(catalog().counts_all()).records, 1U);
  EXPECT_THAT(unwrap(catalog().all_record_keys()), ElementsAre(header.key));
  const FactRef none;
  EXPECT_FALSE(unwrap(catalog().records_of(std::span(&none, 1), kModel)).front().has_value());
}

TEST_P(CatalogSuite, CommitReplacesTheEntryOfAFact) {
  const std::string a = add("a");
  EXPECT_FALSE(unwrap(catalog().commit_record(entry(a, 10))).has_value());
  EXPECT_FALSE(unwrap(catalog().commit_record(entry(a, 10))).has_value()) << "the same key";
  EXPECT_EQ(unwrap(catalog().commit_record(entry(a, 11))), RecordKey{hash_of(10)});
  EXPECT_EQ(record_of(a)->key, RecordKey{hash_of(11)});
  RecordEntry other_model = entry(a, 12);
  other_model.model_fingerprint = hash_of(1);
  EXPECT_FALSE(unwrap(catalog().commit_record(other_model)).has_value());
  EXPECT_EQ(unwrap(catalog().counts(kAlice)).records, 2U);
}

TEST_P(CatalogSuite, AKeyThatAnotherFactUsesIsNotReportedAsReplaced) {
  const std::string a = add("a");
  const std::string b = add("b");
  unwrap(catalog().commit_record(entry(a, 10)));
  unwrap(catalog().commit_record(entry(b, 10)));
  EXPECT_FALSE(unwrap(catalog().commit_record(entry(a, 11))).has_value());
  EXPECT_EQ(unwrap(catalog().commit_record(entry(b, 12))), RecordKey{hash_of(10)});
}

TEST_P(CatalogSuite, CommitFindsEverythingStillLive) {
  const std::string a = add("a");
  const std::string b = add("b");
  unwrap(catalog().add_turns(std::vector{Turn{"D1:1", kAlice, "", "", "", 0, 0}}));
  RecordEntry good = entry(b, 20, {a});
  RecordEntry turns = good;
  turns.attended_turns = {"D9:9"};
  EXPECT_CODE(catalog().commit_record(turns), kConflict);
  RecordEntry records = good;
  records.attended_records = {RecordKey{hash_of(99)}};
  EXPECT_CODE(catalog().commit_record(records), kConflict);
  set_text(a, "a2");
  EXPECT_CODE(catalog().commit_record(good), kConflict) << "attended to a superseded version";
  RecordEntry again = entry(b, 20, {a});
  erase({a});
  EXPECT_CODE(catalog().commit_record(again), kConflict) << "attended to an erased fact";
  RecordEntry stale = entry(b, 20);
  set_text(b, "b2");
  EXPECT_CODE(catalog().commit_record(stale), kConflict) << "of a superseded version";
  RecordEntry gone = entry(b, 20);
  erase({b});
  EXPECT_CODE(catalog().commit_record(gone), kConflict) << "of an erased fact";
  EXPECT_THAT(unwrap(catalog().all_record_keys()), IsEmpty()) << "nothing was written";
}

TEST_P(CatalogSuite, CommitRefusesToCrossScopes) {
  const std::string a = add("a");
  const std::string foreign = add("b", user_scope("bob"));
  RecordEntry crossing = entry(a, 10);
  crossing.attended_facts = {{foreign, 1}};
  EXPECT_CODE(catalog().commit_record(crossing), kInvalidArgument);
  RecordEntry wrong = entry(a, 10);
  wrong.scope = scope_hash(user_scope("bob"));
  EXPECT_CODE(catalog().commit_record(wrong), kInvalidArgument);
}

TEST_P(CatalogSuite, AnUpdateLeavesDependantsInUse) {
  const std::string a = add("a");
  const std::string b = add("b");
  unwrap(catalog().commit_record(entry(a, 10)));
  unwrap(catalog().commit_record(entry(b, 20, {a})));
  EXPECT_THAT(to_encode(), IsEmpty());
  set_text(a, "a2");
  EXPECT_FALSE(record_of(a).has_value()) << "the new version has no record yet";
  const FactRef old{a, 1};
  EXPECT_TRUE(unwrap(catalog().records_of(std::span(&old, 1), kModel)).front().has_value());
  EXPECT_TRUE(record_of(b).has_value()) << "usable until it is encoded again";
  const std::string c = add("c");
  EXPECT_THAT(to_encode(), ElementsAre(a, c, b)) << "what has no record first";
  EXPECT_EQ(unwrap(catalog().count_to_encode(kModel, "window:8")), 3U);
  EXPECT_EQ(unwrap(catalog().commit_record(entry(a, 11))), RecordKey{hash_of(10)});
  EXPECT_EQ(unwrap(catalog().commit_record(entry(b, 21, {a}))), RecordKey{hash_of(20)});
  EXPECT_THAT(to_encode(), ElementsAre(c));
}

TEST_P(CatalogSuite, TheOldVersionOfAnErasedFactGoesToo) {
  const std::string a = add("a");
  const std::string b = add("b");
  unwrap(catalog().commit_record(entry(b, 20, {a})));
  set_text(a, "a2");
  const EraseOutcome outcome = erase({a});
  EXPECT_THAT(outcome.records, ElementsAre(RecordKey{hash_of(20)}));
  EXPECT_THAT(outcome.dependants, ElementsAre(FactRef{b, 1}));
}

TEST_P(CatalogSuite, FactsToEncodeFollowTheContextAndTheCursor) {
  const std::string a = add("a");
  const std::string b = add("b");
  const std::string c = add("c", user_scope("bob"));
  EXPECT_THAT(to_encode(), ElementsAre(a, b, c)) << "of all scopes";
  unwrap(catalog().commit_record(entry(a, 10)));
  const auto ids = [this](std::string_view context, std::int64_t after, std::size_t limit) {
    std::vector<std::string> result;
    for (const Fact& item :
         unwrap(catalog().facts_to_encode({kModel, std::string(context), after, {}}, limit))
             .facts) {
      result.push_back(item.id);
    }
    return result;
  };
  EXPECT_THAT(ids("window:8", 0, 10), ElementsAre(b, c));
  EXPECT_THAT(ids("header", 0, 10), ElementsAre(b, c, a)) << "another context is a re-encode";
  EXPECT_THAT(ids("header", 0, 1), ElementsAre(b));
  EXPECT_THAT(ids("window:8", get(b).sequence, 10), ElementsAre(c));
  EXPECT_EQ(unwrap(catalog().count_to_encode(kModel, "header")), 3U);
  EXPECT_THAT(unwrap(catalog().facts_to_encode({hash_of(1), "window:8", 0, {}}, 10)).facts,
              SizeIs(3));
}

TEST_P(CatalogSuite, FailuresToEncodeAreRememberedUntilTheyAreOver) {
  const std::string a = add("a");
  const std::string b = add("b");
  const std::string c = add("c");
  const auto due = [this](TimestampUs now) {
    std::vector<std::string> ids;
    for (const Fact& item :
         unwrap(catalog().facts_to_encode({kModel, "window:8", 0, now}, 10)).facts) {
      ids.push_back(item.id);
    }
    return ids;
  };
  const TimestampUs now = 1'000'000'000;
  const EncodeFailure later{{a, 1}, kModel, "window:8", 3, now, now + 10, "stumbled"};
  const EncodeFailure never{{b, 1}, kModel, "window:8", 1, now + 1, std::nullopt, "too long"};
  EXPECT_TRUE(catalog().put_encode_failure(later).ok());
  EXPECT_TRUE(catalog().put_encode_failure(never).ok());
  reopen();
  EXPECT_THAT(due(now), ElementsAre(c));
  EXPECT_THAT(due(now + 10), ElementsAre(a, c));
  EXPECT_THAT(due(now - 3 * kMaxEncodeRetryUs), ElementsAre(a, c)) << "the clock was set back";
  EXPECT_THAT(to_encode(), ElementsAre(a, b, c)) << "without a time, all";
  EXPECT_EQ(unwrap(catalog().count_to_encode(kModel, "window:8")), 3U);
  EXPECT_THAT(unwrap(catalog().facts_to_encode({kModel, "header", 0, now}, 10)).facts, SizeIs(3))
      << "another context is another matter";

  const EncodeFailureCounts counts = unwrap(catalog().count_encode_failures(kModel, "window:8"));
  EXPECT_EQ(counts.waiting, 1U);
  EXPECT_EQ(counts.given_up, 1U);
  EXPECT_EQ(counts.next_try, now + 10);
  const auto failures = unwrap(catalog().encode_failures(kModel, "window:8", 10));
  ASSERT_THAT(failures, SizeIs(2));
  EXPECT_EQ(failures[0].fact, never.fact) << "the latest first";
  EXPECT_EQ(failures[0].error, "too long");
  EXPECT_FALSE(failures[0].next_try.has_value());
  EXPECT_EQ(failures[1].attempts, 3U);
  EXPECT_EQ(unwrap(catalog().encode_failure({a, 1}, kModel, "window:8"))->error, "stumbled");
  EXPECT_FALSE(unwrap(catalog().encode_failure({c, 1}, kModel, "window:8")).has_value());

  unwrap(catalog().commit_record(entry(a, 10)));
  set_text(b, "b, but shorter");
  EXPECT_TRUE(catalog().put_encode_failure(never).ok()) << "of a version that is gone";
  EXPECT_THAT(unwrap(catalog().encode_failures(kModel, "window:8", 10)), IsEmpty());
  EXPECT_THAT(due(now), ElementsAre(b, c));
  EXPECT_TRUE(catalog().put_encode_failure({{c, 1}, kModel, "w", 1, now, now, "e"}).ok());
  EXPECT_TRUE(erase({c}).verified);
}

TEST_P(CatalogSuite, RefusesMalformedEntries) {
  const std::string a = add("a");
  RecordEntry nameless = entry(a, 10);
  nameless.context = "";
  EXPECT_CODE(catalog().commit_record(nameless), kInvalidArgument);
  RecordEntry versioned;
  versioned.context = "prefix";
  versioned.fact.version = 3;
  EXPECT_CODE(catalog().commit_record(versioned), kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::testing
