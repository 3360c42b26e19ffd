// Flipped bits in the catalog's file: what `check` finds, what reading refuses, what repair does.
#include <sqlite3.h>

#include <array>
#include <fstream>
#include <iterator>

#include "catalog/sqlite/scrub_vfs.h"
#include "catalog/sqlite/sqlite_catalog.h"
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kText = "Mara adopted a whippet named Pixel";
constexpr std::string_view kOldText = "Mara wanted a greyhound called Vector";
constexpr std::string_view kMetadata = R"({"city":"Graz","score":31415})";
constexpr std::string_view kTurnText = "I said that I adopted him";

class SqliteDamage : public ::testing::Test {
 protected:
  void SetUp() override {
    auto catalog = unwrap(open());
    Turn turn;
    turn.id = "turn-0815";
    turn.event_time = 1'700'000'000'000'000;
    turn.speaker = "Speakerine";
    turn.role = "user";
    turn.text = kTurnText;
    unwrap(catalog->add_turns(std::span(&turn, 1)));
    NewFact fact;
    fact.text = kOldText;
    fact.source_turns = {turn.id};
    id_ = unwrap(catalog->add_facts(std::span(&fact, 1))).front().id;
    FactPatch patch;
    patch.text = std::string(kText);
    patch.metadata = std::string(kMetadata);
    unwrap(catalog->update_fact(Scope{}, id_, patch));
    EXPECT_TRUE(unwrap(catalog->check(true, {})).problems.empty());
    catalog.reset();
    // Into the file, and no log: what is flipped is then what is read.
    tamper("PRAGMA journal_mode=DELETE");
    std::ifstream in(file(), std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }

  [[nodiscard]] std::filesystem::path data() const { return directory_.path() / "data"; }
  [[nodiscard]] std::filesystem::path file() const { return data() / "catalog.sqlite"; }
  Result<std::unique_ptr<Catalog>> open() const { return open_sqlite_catalog({data(), 0}); }

  void tamper(const std::string& sql) const {
    sqlite3* raw = nullptr;
    ASSERT_EQ(sqlite3_open(file().c_str(), &raw), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(raw, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(raw) << ": " << sql;
    sqlite3_close(raw);
  }

  void write(const std::string& bytes) const {
    for (const char* suffix : {"-wal", "-shm"}) {
      std::filesystem::remove(file().string() + suffix);
    }
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << bytes;
  }

  [[nodiscard]] std::string flipped(std::size_t at, int bit) const {
    std::string bytes = bytes_;
    bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << bit));
    return bytes;
  }

  static bool names(const CatalogReport& report, std::string_view kind) {
    return std::any_of(report.problems.begin(), report.problems.end(),
                       [&](const CatalogProblem& problem) { return problem.kind == kind; });
  }

  CatalogDirectory directory_;
  std::string id_;
  std::string bytes_;
};

// Wherever the words stand in the file: in the row, or in an index of it.
TEST_F(SqliteDamage, EveryFlippedBitOfTextMetadataAndIdsIsFound) {
  for (const std::string_view content :
       {kText, kOldText, kMetadata, kTurnText, std::string_view("Speakerine"),
        std::string_view("turn-0815"), std::string_view(id_)}) {
    std::size_t found = 0;
    for (std::size_t at = bytes_.find(content); at != std::string::npos;
         at = bytes_.find(content, at + 1)) {
      ++found;
      for (std::size_t i = 0; i < content.size(); ++i) {
        const int bit = static_cast<int>(i % 8);  // each bit of some byte
        write(flipped(at + i, bit));
        const auto catalog = open();
        if (!catalog.ok()) {
          EXPECT_CODE(catalog, kDataLoss) << content << " byte " << i;
          continue;
        }
        EXPECT_FALSE(unwrap((*catalog)->check(true, {})).problems.empty())
            << content << " byte " << i << " bit " << bit;
      }
    }
    EXPECT_GE(found, 1U) << content;
  }
}

struct Change {
  const char* sql;
  bool fact;  // reading the fact shows it, not only reading its history or its turn
};

TEST_F(SqliteDamage, EveryCoveredColumnIsCheckedWhenItIsRead) {
  const Change changes[] = {{"UPDATE facts SET text = 'Mara adopted a whippet named Pixem'", true},
                            {"UPDATE facts SET metadata = '{}'", true},
                            {"UPDATE facts SET version = version + 1", true},
                            {"UPDATE facts SET ingest_time = ingest_time + 1", true},
                            {"UPDATE facts SET event_time = 5", true},
                            {"UPDATE facts SET event_offset = 60", true},
                            {"UPDATE facts SET checksum = NULL", true},
                            {"UPDATE fact_sources SET turn_id = 'turn-0816'", true},
                            {"UPDATE fact_history SET text = 'x'", false},
                            {"UPDATE fact_history SET metadata = '{\"a\":1}'", false},
                            {"UPDATE fact_history SET valid_from = valid_from - 1", false},
                            {"UPDATE turns SET text = 'x'", false},
                            {"UPDATE turns SET speaker = 'x'", false},
                            {"UPDATE turns SET role = 'x'", false},
                            {"UPDATE turns SET event_time = event_time + 1", false}};
  for (const Change& change : changes) {
    write(bytes_);
    tamper(change.sql);
    const auto catalog = unwrap(open());
    EXPECT_TRUE(names(unwrap(catalog->check(true, {})), "row_checksum")) << change.sql;
    const auto fact = catalog->get_fact(Scope{}, id_);
    EXPECT_EQ(fact.ok(), !change.fact) << change.sql;
    CatalogVisitor visitor;
    visitor.begin = [](auto, auto, auto) { return Status(); };
    visitor.turn = [](const Turn&) { return Status(); };
    visitor.fact = [](const RestoredFact&) { return Status(); };
    const Status exported = catalog->export_scope(Scope{}, visitor);
    EXPECT_EQ(exported.code(), StatusCode::kDataLoss) << change.sql;
    EXPECT_THAT(exported.message(), HasSubstr("repair"));
  }
}

TEST_F(SqliteDamage, ADamagedTurnIsNotWhatAFactIsEncodedBehind) {
  Turn later;
  later.id = "turn-0816";
  later.text = "And then he ran away";
  unwrap(unwrap(open())->add_turns(std::span(&later, 1)));
  EXPECT_EQ(unwrap(unwrap(open())->turns_before(Scope{}, later.id, 4)).size(), 1U);
  tamper("UPDATE turns SET text = 'x' WHERE id = 'turn-0815'");
  EXPECT_CODE(unwrap(open())->turns_before(Scope{}, later.id, 4), kDataLoss);
}

TEST_F(SqliteDamage, ADamagedFactCanBeErasedAndIsNotChanged) {
  tamper("UPDATE facts SET metadata = '{}'");
  const auto catalog = unwrap(open());
  FactPatch patch;
  patch.text = "something else";
  EXPECT_CODE(catalog->update_fact(Scope{}, id_, patch), kDataLoss);
  EXPECT_TRUE(catalog->erase_facts(Scope{}, std::array{id_}, false).ok());
  EXPECT_TRUE(unwrap(catalog->check(true, {})).problems.empty());
}

TEST_F(SqliteDamage, RepairKeepsWhatIsThereAndNamesIt) {
  tamper("UPDATE facts SET metadata = '{}'");
  const auto catalog = unwrap(open());
  const CatalogRepair repaired = unwrap(catalog->repair({}));
  EXPECT_TRUE(std::any_of(repaired.actions.begin(), repaired.actions.end(), [&](const auto& a) {
    return a.what.find(id_) != std::string::npos && a.what.find("checksum") != std::string::npos;
  }));
  EXPECT_TRUE(unwrap(catalog->check(true, {})).problems.empty());
  EXPECT_EQ(unwrap(catalog->get_fact(Scope{}, id_)).metadata, "{}");
}

// The catalog's own statements never fail to compile: when one does, the schema is damaged.
TEST_F(SqliteDamage, AFlippedBitInTheSchemaIsDamageAndNeverAnInternalError) {
  constexpr std::size_t kPage = sqlite::kPageBytes;
  constexpr std::size_t kEvery = 37;  // a prime: bytes and bits of every kind
  int refused = 0;
  int reported = 0;
  for (std::size_t page = 0; page < bytes_.size(); page += kPage) {
    if (page != 0 && bytes_.substr(page, kPage).find("CREATE ") == std::string::npos) {
      continue;
    }
    for (std::size_t at = page; at < page + kPage; at += kEvery) {
      write(flipped(at, static_cast<int>(at / kEvery % 8)));
      const auto catalog = open();
      const auto report =
          catalog.ok() ? (*catalog)->check(true, {}) : Result<CatalogReport>(catalog.status());
      if (report.ok()) {
        reported += report->problems.empty() ? 0 : 1;  // free space, and numbers that only hint
        continue;
      }
      ++refused;
      EXPECT_NE(report.status().code(), StatusCode::kInternal)
          << "byte " << at << ": " << report.status().to_string();
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(reported, 0);
}

TEST_F(SqliteDamage, ATriggerThatSaysSomethingElseIsFound) {
  tamper(
      "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, '+ 1', '- 1')"
      " WHERE name = 'facts_count_insert'; PRAGMA writable_schema = RESET");
  EXPECT_TRUE(names(unwrap(unwrap(open())->check(false, {})), "database_schema"));
}

}  // namespace
}  // namespace inferscale::testing
