// Each thing is damaged, found, repaired, and then found to be clean.
#include "memory/verify.h"

#include <gmock/gmock.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <fstream>

#include "unit/kv/segment_files.h"
#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Field;
using ::testing::IsEmpty;

std::string texts(const std::vector<VerifyProblem>& problems) {
  std::string text;
  for (const VerifyProblem& problem : problems) {
    text += problem.kind + " | " + problem.what + " | " + problem.repair + "\n";
  }
  return text;
}

class Verify : public ::testing::Test {
 protected:
  void SetUp() override {
    rig_.options.host_budget_bytes = 1;  // records are on disk alone
    rig_.open();
    ids_ = rig_.add(user("mara"), {"Mara adopted a whippet named Pixel", "Mara lives in Graz",
                                   "Mara plays the cello on Sundays", "Pixel is afraid of rain"})
               .ids;
    ASSERT_EQ(ids_.size(), 4U);
    UpdateRequest update;
    update.scope = user("mara");
    update.id = ids_[1];
    for (const char* text : {"Mara lives in Linz", "Mara lives in Wels"}) {
      update.text = text;
      ASSERT_TRUE(rig_.service->update(update, true, {}).ok());
    }
  }

  fs::path data() const { return rig_.options.directory; }

  /// Runs SQL on the file while nothing has it open.
  void tamper(const std::string& sql) {
    rig_.service.reset();
    sqlite3* raw = nullptr;
    ASSERT_EQ(sqlite3_open((data() / "catalog.sqlite").c_str(), &raw), SQLITE_OK);
    // The triggers that keep counters need no words; the keyword index needs its own tokenizer.
    EXPECT_EQ(sqlite3_exec(raw, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(raw) << ": " << sql;
    sqlite3_close(raw);
    rig_.open();
  }

  VerifyReport verify(VerifyLevel level = VerifyLevel::kFull) {
    auto report = rig_.service->verify(level, {});
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return report.ok() ? *std::move(report) : VerifyReport();
  }

  void expect_clean() {
    const VerifyReport report = verify();
    EXPECT_TRUE(report.ok) << texts(report.problems);
    EXPECT_THAT(report.problems, IsEmpty());
  }

  /// Found at this level, repaired, clean; and repairing again does nothing.
  void expect_found_and_repaired(const std::string& kind, VerifyLevel level = VerifyLevel::kFull) {
    const VerifyReport found = verify(level);
    EXPECT_FALSE(found.ok);
    EXPECT_THAT(found.problems, Contains(Field(&VerifyProblem::kind, kind)))
        << texts(found.problems);
    EXPECT_GE(found.counts.problems, 1U);
    repair(true);
  }

  void repair(bool something) {
    const auto repaired = rig_.service->repair({});
    ASSERT_TRUE(repaired.ok()) << repaired.status().to_string();
    EXPECT_EQ(!repaired->actions.empty(), something);
    EXPECT_TRUE(repaired->after.ok) << texts(repaired->after.problems);
    const auto again = rig_.service->repair({});
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_THAT(again->actions, IsEmpty()) << again->actions.front().what;
    expect_clean();
    expect_facts_kept();
  }

  void expect_facts_kept() {
    const auto list = rig_.service->list(user("mara"), "", 100, "");
    ASSERT_TRUE(list.ok());
    EXPECT_EQ(list->facts.size(), 4U);
    const auto history = rig_.service->history(user("mara"), ids_[1]);
    ASSERT_TRUE(history.ok());
    EXPECT_EQ(history->size(), 3U);
    const auto hits = rig_.service->search(user("mara"), "cello", 10, "");
    ASSERT_TRUE(hits.ok());
    EXPECT_THAT(hits->hits, Contains(Field(&SearchHit::keyword_score, ::testing::Gt(0))));
  }

  ServiceRig rig_;
  std::vector<std::string> ids_;
};

TEST_F(Verify, WhatWasJustWrittenIsClean) {
  const VerifyReport report = verify();
  EXPECT_TRUE(report.ok) << texts(report.problems);
  EXPECT_EQ(report.counts.facts, 4U);
  EXPECT_EQ(report.counts.entries, report.counts.records);
  EXPECT_EQ(report.counts.records_read, report.counts.records);
  EXPECT_GE(report.counts.records, 4U);
  EXPECT_EQ(report.counts.encode_again, 0U);
  EXPECT_EQ(verify(VerifyLevel::kQuick).counts.records_read, 0U);
  repair(false);
}

TEST_F(Verify, EntriesWithoutARecordAreNoProblem) {
  rig_.service.reset();
  fs::remove_all(data() / "kv");
  rig_.open();
  const VerifyReport report = verify();
  EXPECT_TRUE(report.ok) << texts(report.problems);
  EXPECT_EQ(report.counts.records, 0U);
  EXPECT_EQ(report.counts.encode_again, report.counts.entries);
  EXPECT_GE(report.counts.entries, 4U);
}

TEST_F(Verify, CancelledWorkSaysSo) {
  const std::atomic<bool> cancelled{true};
  WorkControl control;
  control.cancelled = &cancelled;
  EXPECT_EQ(rig_.service->verify(VerifyLevel::kFull, control).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(rig_.service->repair(control).status().code(), StatusCode::kUnavailable);
  expect_clean();
}

struct Damage {
  const char* name;
  const char* kind;
  const char* sql;
  VerifyLevel level = VerifyLevel::kQuick;  // the least that finds it
};
void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

class VerifyCatalog : public Verify, public ::testing::WithParamInterface<Damage> {};

TEST_P(VerifyCatalog, IsFoundAndRepaired) {
  tamper(GetParam().sql);
  expect_found_and_repaired(GetParam().kind, GetParam().level);
}

INSTANTIATE_TEST_SUITE_P(
    Damages, VerifyCatalog,
    ::testing::Values(
        Damage{"KeywordEntryLost", "keyword_index",
               "DELETE FROM keywords_data WHERE id > 10; DELETE FROM keywords_idx"},
        Damage{"KeywordEntryOfOtherText", "keyword_index",
               "UPDATE facts SET text = replace(text, 'cello', 'viola') WHERE text LIKE '%cello%';"
               "UPDATE facts SET text = replace(text, 'whippet', 'cello')"},
        Damage{"Counters", "keyword_counters", "UPDATE owners SET live_facts = 3"},
        Damage{"VectorSize", "vector_size",
               "UPDATE vectors SET data = substr(data, 1, 8) WHERE pk = 1"},
        Damage{"VectorValue", "vector_value",
               "UPDATE vectors SET data = zeroblob(length(data)) WHERE fact = 3",
               VerifyLevel::kFull},
        Damage{"VectorOfNothing", "vector_of_nothing",
               "INSERT INTO vectors(fact, embedder, chunks, data) SELECT 999, embedder, chunks,"
               " data FROM vectors LIMIT 1"},
        Damage{"FactHash", "fact_hash", "UPDATE facts SET content_hash = zeroblob(16) WHERE pk = 1",
               VerifyLevel::kFull},
        Damage{"HistoryInterval", "history_interval",
               "UPDATE fact_history SET valid_to = valid_to + 5 WHERE version = 1"},
        Damage{"HistoryBeforeLive", "history_interval",
               "UPDATE fact_history SET valid_to = valid_to + 5 WHERE version = 2"},
        Damage{"EntryVersion", "record_version", "UPDATE records SET version = 9 WHERE fact = 1"},
        Damage{"EntryScope", "record_scope",
               "UPDATE records SET scope_hash = zeroblob(16) WHERE fact = 2"},
        Damage{"EntryTokens", "different_record",
               "UPDATE records SET n_tokens = n_tokens + 1 WHERE fact = 3", VerifyLevel::kFull},
        Damage{"EntryModel", "different_record",
               "UPDATE records SET fingerprint = zeroblob(16) WHERE fact = 3", VerifyLevel::kFull},
        Damage{"EntryContext", "different_record",
               "UPDATE records SET context_id = zeroblob(16) WHERE fact IS NULL",
               VerifyLevel::kFull},
        Damage{"EntryMalformed", "record_malformed",
               "UPDATE records SET context_id = x'00' WHERE fact = 4"},
        Damage{"AttendedVersion", "record_attended",
               "UPDATE record_facts SET version = 9 WHERE fact = 1"},
        Damage{"AttendedFactGone", "dangling_reference",
               "INSERT INTO record_facts SELECT record, 999, 1 FROM record_facts LIMIT 1"},
        Damage{"NotStale", "record_not_stale",
               "UPDATE facts SET version = 2 WHERE pk = 1; UPDATE records SET stale = 0"},
        Damage{"RetiredForNothing", "record_retired",
               "INSERT INTO records(fact, version, retired, n_tokens, fingerprint, key, context_id,"
               " scope_hash, context) SELECT fact, version, 1, n_tokens, fingerprint,"
               " randomblob(16), context_id, scope_hash, context FROM records WHERE fact = 1"}),
    [](const auto& damage) { return damage.param.name; });

TEST_F(Verify, ADroppedEntryTakesItsRecordAndIsEncodedAgain) {
  tamper("UPDATE records SET n_tokens = n_tokens + 1 WHERE fact = 3");
  const std::uint64_t before = verify().counts.records;
  repair(true);
  EXPECT_EQ(verify().counts.records, before - 1);
  const auto encoded = rig_.service->encode_pending({});
  ASSERT_TRUE(encoded.ok());
  EXPECT_EQ(encoded->encoded, 1U);
  EXPECT_EQ(verify().counts.records_read, before);
}

// A row that its index lacks, written while the schema said that the index does not cover it.
TEST_F(Verify, ADamagedIndexIsBuiltAgain) {
  tamper(
      "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = sql || ' WHERE fact < 0'"
      " WHERE name = 'fact_sources_by_turn'; PRAGMA writable_schema = RESET;"
      "INSERT INTO fact_sources(fact, position, turn_id) VALUES(1, 0, 't1'); PRAGMA "
      "writable_schema = ON;"
      "UPDATE sqlite_schema SET sql = replace(sql, ' WHERE fact < 0', '')"
      " WHERE name = 'fact_sources_by_turn'; PRAGMA writable_schema = RESET");
  expect_found_and_repaired("database_damaged");
}

TEST_F(Verify, WhatCannotBeRepairedSaysWhatToDo) {
  tamper("UPDATE fact_history SET version = 7 WHERE version = 2");
  const auto repaired = rig_.service->repair({});
  ASSERT_TRUE(repaired.ok());
  EXPECT_FALSE(repaired->after.ok);
  ASSERT_FALSE(repaired->after.problems.empty());
  EXPECT_THAT(repaired->after.problems.front().repair, ::testing::HasSubstr("restore a backup"));
}

TEST_F(Verify, LooseModesAreFoundAndTightened) {
  ::chmod((data() / "secret").c_str(), 0644);
  ::chmod((data() / "kv").c_str(), 0755);
  ::chmod((data() / "catalog.sqlite-wal").c_str(), 0666);
  ::chmod(data().c_str(), 0750);
  const VerifyReport found = verify();
  EXPECT_EQ(found.counts.problems, 4U) << texts(found.problems);
  expect_found_and_repaired("file_mode");
  struct stat info {};
  ASSERT_EQ(::stat((data() / "secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
}

TEST_F(Verify, LeftoversAreErasedAndStrangersAreNamed) {
  std::ofstream(data() / "secret.tmp-abcdef") << "half a secret";
  ::chmod((data() / "secret.tmp-abcdef").c_str(), 0600);
  std::ofstream(data() / "README") << "mine";
  expect_found_and_repaired("leftover_file");
  EXPECT_FALSE(fs::exists(data() / "secret.tmp-abcdef"));
  const VerifyReport report = verify();
  EXPECT_TRUE(report.ok);
  EXPECT_EQ(report.counts.foreign_files, 1U);
  EXPECT_THAT(report.checks.back().detail, ::testing::HasSubstr("README"));
}

TEST_F(Verify, UnknownFilesAmongTheRecordsAreReportedSinceDeletesDoNotReachThem) {
  fs::create_directory(data() / "kv" / "ab");
  ::chmod((data() / "kv" / "ab").c_str(), 0700);
  std::ofstream(data() / "kv" / "ab" / "old.iskv") << "token ids, keys and values";
  ::chmod((data() / "kv" / "ab" / "old.iskv").c_str(), 0600);
  const VerifyReport found = verify();
  EXPECT_FALSE(found.ok);
  EXPECT_EQ(found.counts.problems, 2U);
  EXPECT_THAT(found.problems, Contains(Field(&VerifyProblem::kind, "unknown_file")));
  fs::remove_all(data() / "kv" / "ab");
  expect_clean();
}

TEST_F(Verify, WhatBearsTheNameOfASegmentAndIsNoneIsMovedAside) {
  rig_.service.reset();
  std::vector<fs::path> segments;
  for (const fs::directory_entry& entry : fs::directory_iterator(data() / "kv")) {
    segments.push_back(entry.path());
  }
  ASSERT_FALSE(segments.empty());
  for (const fs::path& segment : segments) {  // the index file among them
    fs::remove(segment);
    fs::create_directory(segment);
    std::ofstream(segment / "inside") << "somebody's";
  }
  const fs::path elsewhere = data().parent_path() / "elsewhere";
  std::ofstream(elsewhere) << "not the store's";
  fs::path link = segments.front();
  for (const fs::path& segment : segments) {
    if (segment.extension() == ".isseg") {
      link = segment;
    }
  }
  fs::remove_all(link);
  fs::create_symlink(elsewhere, link);
  rig_.open();
  EXPECT_THAT(verify().problems, Contains(Field(&VerifyProblem::kind, "odd_file")));
  repair(true);
  EXPECT_EQ(fs::file_size(elsewhere), 15U);
  EXPECT_TRUE(fs::is_symlink(data() / ("set-aside-" + link.filename().string())));
  // The store writes and erases as before.
  EXPECT_TRUE(rig_.service->encode_pending({}).ok());
  expect_clean();
}

TEST_F(Verify, ALinkedCatalogIsNotFollowed) {
  rig_.service.reset();
  const fs::path elsewhere = data().parent_path() / "elsewhere.sqlite";
  fs::rename(data() / "catalog.sqlite", elsewhere);
  fs::create_symlink(elsewhere, data() / "catalog.sqlite");
  const auto opened = MemoryService::open(rig_.options);
  EXPECT_EQ(opened.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(opened.status().message().find("symbolic link"), std::string::npos);
}

TEST_F(Verify, AFactWhoseHashDidNotFitIsNamedByRepair) {
  tamper("UPDATE facts SET content_hash = zeroblob(16) WHERE pk = 1");
  const auto repaired = rig_.service->repair({});
  ASSERT_TRUE(repaired.ok());
  EXPECT_TRUE(repaired->after.ok);
  EXPECT_THAT(repaired->actions,
              Contains(Field(&RepairAction::what, ::testing::HasSubstr(ids_[0]))));
}

TEST(VerifyCore, ASecretThatWasCutOffIsErasedByTheNextStart) {
  ServiceRig rig;
  fs::create_directories(rig.options.directory);
  std::ofstream(rig.options.directory / "secret.tmp-abcdef") << "half a secret";
  rig.open();
  EXPECT_FALSE(fs::exists(rig.options.directory / "secret.tmp-abcdef"));
  EXPECT_TRUE(rig.service->verify(VerifyLevel::kFull, {})->ok);
}

TEST_F(Verify, LinksAreReportedAndNotFollowed) {
  fs::create_symlink("/etc", data() / "kv" / "link");
  const VerifyReport found = verify();
  EXPECT_THAT(found.problems, Contains(Field(&VerifyProblem::kind, "odd_file")));
  fs::remove(data() / "kv" / "link");
  expect_clean();
}

TEST_F(Verify, ADamagedRecordIsFoundAndEncodedAgain) {
  const std::uint64_t before = verify().counts.records;
  const auto records = testing::live_entries(posix_file_system(), data() / "kv");
  ASSERT_FALSE(records.empty());
  testing::flip_byte(posix_file_system(), records.back().path,
                     records.back().offset + records.back().bytes / 2);
  const VerifyReport found = verify();
  EXPECT_THAT(found.problems, Contains(Field(&VerifyProblem::kind, "damaged_record")))
      << texts(found.problems);
  const VerifyReport after = verify();
  EXPECT_TRUE(after.ok) << texts(after.problems);
  EXPECT_EQ(after.counts.encode_again, 1U);
  EXPECT_EQ(after.counts.records, before - 1);
}

TEST(VerifyCore, AnOrphanIsFoundAndErased) {
  ServiceRig rig;
  rig.open();
  rig.add(user("mara"), {"Mara lives in Graz"});
  rig.service.reset();
  ServiceDependencies none;
  auto core = ServiceCore::open(rig.options, none);
  ASSERT_TRUE(core.ok()) << core.status().to_string();
  const std::vector<RecordKey> keys = (*core)->store().keys();
  ASSERT_FALSE(keys.empty());
  const auto record = (*core)->store().inspect(keys.front());
  ASSERT_TRUE(record.ok() && *record != nullptr);
  RecordKey other;
  other.value.bytes.fill(std::byte{7});
  ASSERT_TRUE((*core)->store().put(other, *record).ok());
  const auto found = verify_data(**core, VerifyLevel::kQuick, {});
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->ok);
  EXPECT_THAT(found->problems, Contains(Field(&VerifyProblem::kind, "orphan_record")));
  const auto repaired = repair_data(**core, {});
  ASSERT_TRUE(repaired.ok()) << repaired.status().to_string();
  EXPECT_TRUE(repaired->after.ok) << texts(repaired->after.problems);
  EXPECT_FALSE((*core)->store().contains(other));
  EXPECT_TRUE((*core)->store().contains(keys.front()));
}

}  // namespace
}  // namespace inferscale
