// The checks of the crash tests find what they are there to find.
#include "crash/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <utility>

#include "crash/crash_directory.h"

namespace inferscale::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A service after the scripted operations, and the oracle that followed them.
class CrashCheck : public ::testing::Test {
 protected:
  CrashCheck() {
    options_.directory = directory_.data();
    service_ = std::move(open_crash_service(options_)).value();
    for (const Operation& scripted : scripted_operations()) {
      const auto added = work(resolve(scripted, ids_));
      ids_.insert(ids_.end(), added.begin(), added.end());
    }
  }
  std::vector<std::string> work(const Operation& operation) {
    oracle_.begin(operation);
    auto added = perform(*service_->service, service_->core->store(), operation);
    EXPECT_TRUE(added.ok()) << added.status().to_string();
    oracle_.acknowledge(*added);
    return *added;
  }
  static Operation add(std::vector<std::string> texts) {
    return {OperationKind::kAdd, "ana", std::move(texts), {}, false, false, false};
  }
  CheckReport check() {
    return check_service(*service_, oracle_, directory_.data().parent_path() / "fresh", 7);
  }
  std::vector<std::string> problems() { return check().problems; }

  CrashDirectory directory_;
  CrashServiceOptions options_;
  std::unique_ptr<CrashService> service_;
  Oracle oracle_;
  std::vector<std::string> ids_;
};

TEST_F(CrashCheck, IsCleanWhenNothingIsWrong) {
  const CheckReport report = check();
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.facts, 3U);
  EXPECT_EQ(report.records, 3U);
  EXPECT_THAT(report.records_missing, IsEmpty());
  EXPECT_EQ(report.questions, 40U);
  service_.reset();
  EXPECT_THAT(check_copy(options_, oracle_, 7).problems, IsEmpty());
  EXPECT_THAT(find_traces(directory_.data(), oracle_), IsEmpty());
}

TEST_F(CrashCheck, FindsALostOperation) {
  oracle_.begin(add({"ana likes maps m1000050q"}));
  oracle_.acknowledge({"an id"});
  EXPECT_THAT(problems(), Not(IsEmpty()));
}

TEST_F(CrashCheck, FindsAnErasedFactThatIsBack) {
  oracle_.begin({OperationKind::kDelete, "ana", {}, {ids_[0]}, false, false, false});
  oracle_.acknowledge({});
  EXPECT_THAT(problems(), Not(IsEmpty()));
}

TEST_F(CrashCheck, FindsHalfAnOperation) {
  ASSERT_TRUE(
      perform(*service_->service, service_->core->store(), add({"ana likes maps m1000050q"})).ok());
  oracle_.begin(add({"ana likes maps m1000050q", "ana likes keys m1000051q"}));
  EXPECT_THAT(problems(), Not(IsEmpty()));
}

TEST_F(CrashCheck, TakesAnOperationThatWasCutOffWholeOrNotAtAll) {
  const Operation operation = add({"ana likes maps m1000050q", "ana likes keys m1000051q"});
  oracle_.begin(operation);
  EXPECT_THAT(problems(), IsEmpty());
  EXPECT_EQ(oracle_.state().facts.size(), 3U);
  ASSERT_TRUE(perform(*service_->service, service_->core->store(), operation).ok());
  oracle_.begin(operation);
  EXPECT_THAT(problems(), IsEmpty());
  EXPECT_EQ(oracle_.state().facts.size(), 5U);
}

/// A record like the one of a fact, with other keys and values.
std::shared_ptr<const Record> empty_record_like(const Record& record) {
  RecordBuilder builder =
      std::move(RecordBuilder::create(record.meta(), record.token_ids())).value();
  return std::move(builder).seal();
}

TEST_F(CrashCheck, FindsRecordsThatAreWrongOrNobodys) {
  Catalog& catalog = service_->core->catalog();
  const auto parts = service_->core->engine();
  const FactRef ref{ids_[0], 2};
  const RecordEntry entry = catalog.records_of({&ref, 1}, (*parts)->fingerprint())->front().value();
  const Fact fact = catalog.get_fact(scope_of("ana"), ids_[0]).value();
  const auto line = (*parts)->prompt->fact_line(fact.text, fact.event_time, 0);
  RecordRequest request{
      entry.key, (*parts)->fingerprint(), (*parts)->engine->info().model.shape, entry.scope,
      *line,     entry.context_id};
  const auto leases = service_->core->store().acquire({&request, 1});
  ASSERT_TRUE(leases.front().ready());
  const auto wrong = empty_record_like(*leases.front().record());
  ASSERT_TRUE(service_->core->store().put(entry.key, wrong).ok());
  EXPECT_THAT(problems(), Contains(HasSubstr("WRONG KV")));
  RecordKey other = entry.key;
  other.value.bytes[0] ^= std::byte{1};
  ASSERT_TRUE(service_->core->store().put(other, wrong).ok());
  EXPECT_THAT(problems(), Contains(HasSubstr("does not name")));
}

TEST_F(CrashCheck, FindsTracesOfWhatWasDeleted) {
  service_.reset();
  std::ofstream(directory_.data() / "kv" / "text") << "some m1000002q bytes";
  EXPECT_THAT(find_traces(directory_.data(), oracle_),
              Contains(HasSubstr("still holds m1000002q")));
  std::string tokens;
  for (const char character : std::string("xm1000002q")) {
    tokens += std::string{character, '\0', '\0', '\0'};
  }
  std::ofstream(directory_.data() / "kv" / "text") << tokens;
  EXPECT_THAT(find_traces(directory_.data(), oracle_), Contains(HasSubstr("tokens of m1000002q")));
}

}  // namespace
}  // namespace inferscale::testing
