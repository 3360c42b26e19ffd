// The file itself: modes, lock, migrations, damage, lack of space.
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "catalog/sqlite/connection.h"
#include "catalog/sqlite/schema.h"
#include "catalog/sqlite/sqlite_catalog.h"
#include "catalog/sqlite/tokenizer.h"
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SqliteStorage : public ::testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path data() const { return directory_.path() / "data"; }
  [[nodiscard]] std::filesystem::path file() const { return data() / "catalog.sqlite"; }
  Result<std::unique_ptr<Catalog>> open(std::uint64_t max_bytes = 0) const {
    return open_sqlite_catalog({data(), max_bytes});
  }

  static NewFact fact(std::string text) {
    NewFact item;
    item.text = std::move(text);
    return item;
  }
  static Result<std::vector<AddOutcome>> add(Catalog& catalog, std::string text) {
    const NewFact item = fact(std::move(text));
    return catalog.add_facts(std::span(&item, 1));
  }
  static std::uint64_t count(Catalog& catalog) { return unwrap(catalog.counts_all()).facts; }

  /// Runs SQL behind the catalog's back.
  void tamper(const std::string& sql) const {
    sqlite3* raw = nullptr;
    ASSERT_EQ(sqlite3_open(file().c_str(), &raw), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(raw, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(raw);
    sqlite3_close(raw);
  }
  static mode_t mode(const std::filesystem::path& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777U;
  }

  CatalogDirectory directory_;
};

TEST_F(SqliteStorage, FilesArePrivateWhateverTheUmask) {
  const mode_t before = ::umask(0);
  {
    const auto catalog = unwrap(open());
    unwrap(add(*catalog, "x"));
    EXPECT_EQ(count(*catalog), 1U);
    EXPECT_EQ(mode(data()), 0700U);
    for (const auto& entry : std::filesystem::directory_iterator(data())) {
      EXPECT_EQ(mode(entry.path()), 0600U) << entry.path();
    }
    EXPECT_TRUE(std::filesystem::exists(file().string() + "-wal"));
  }
  ::chmod(file().c_str(), 0666);
  ::chmod(data().c_str(), 0777);
  const auto again = unwrap(open());
  EXPECT_EQ(mode(file()), 0600U);
  EXPECT_EQ(mode(data()), 0700U);
  ::umask(before);
}

TEST_F(SqliteStorage, SettingsOfTheFile) {
  unwrap(open());
  const auto connection =
      unwrap(sqlite::Connection::open(file(), sqlite::Connection::Mode::kReadWrite));
  EXPECT_EQ(unwrap(connection->integer("PRAGMA secure_delete")), 1);
  EXPECT_EQ(unwrap(connection->integer("PRAGMA foreign_keys")), 1);
  EXPECT_EQ(unwrap(connection->integer("PRAGMA user_version")),
            sqlite::migrations().back().version);
  sqlite::Statement journal = unwrap(connection->prepare("PRAGMA journal_mode"));
  EXPECT_TRUE(unwrap(journal.step()));
  EXPECT_EQ(journal.text(0), "wal");
}

TEST_F(SqliteStorage, ASecondOpenerIsToldWhatToDo) {
  auto first = unwrap(open());
  const auto second = open();
  EXPECT_CODE(second, kConflict);
  EXPECT_THAT(second.status().message(), AllOf(HasSubstr(data().string()), HasSubstr("stop")));
  const pid_t child = ::fork();
  if (child == 0) {
    const auto other = open();
    ::_exit(!other.ok() && other.status().code() == StatusCode::kConflict ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  first.reset();
  EXPECT_TRUE(open().ok());
}

TEST_F(SqliteStorage, ANewerSchemaIsRefusedAndLeftAlone) {
  unwrap(add(*unwrap(open()), "x"));
  tamper("PRAGMA user_version=1000");
  const auto refused = open();
  EXPECT_CODE(refused, kUnsupported);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("1000"), HasSubstr("newer")));
  tamper("PRAGMA user_version=" + std::to_string(sqlite::migrations().back().version));
  EXPECT_EQ(count(*unwrap(open())), 1U);
}

TEST_F(SqliteStorage, ACatalogOfVersion1IsMigratedWithItsFacts) {
  unwrap(add(*unwrap(open()), "x"));
  tamper(
      "DROP TABLE epochs; DROP TABLE encode_failures; ALTER TABLE facts DROP COLUMN checksum;"
      "ALTER TABLE fact_history DROP COLUMN checksum; ALTER TABLE turns DROP COLUMN checksum;"
      "ALTER TABLE fact_sources DROP COLUMN checksum; PRAGMA user_version=1");
  const auto catalog = unwrap(open());
  EXPECT_EQ(count(*catalog), 1U);
  EXPECT_TRUE(unwrap(catalog->check(true, {})).problems.empty());
  EXPECT_EQ(unwrap(catalog->count_encode_failures(Hash128(), "header")).waiting, 0U);
}

TEST_F(SqliteStorage, AnEmptyFileIsMigratedFromVersion0) {
  std::filesystem::create_directories(data());
  std::ofstream(file()).close();
  unwrap(add(*unwrap(open()), "x"));
  EXPECT_EQ(count(*unwrap(open())), 1U);
}

TEST_F(SqliteStorage, MigrationsRunOnceAndAreAllOrNothing) {
  unwrap(open());
  auto connection = unwrap(sqlite::Connection::open(file(), sqlite::Connection::Mode::kReadWrite));
  const auto tokenizer = unwrap(sqlite::KeywordTokenizer::attach(*connection));
  const int newest = sqlite::migrations().back().version;
  const std::vector<sqlite::Migration> steps = {
      {newest, "not run again"},
      {newest + 1, "CREATE TABLE two(x); INSERT INTO two VALUES(1)"},
      {newest + 2, "CREATE TABLE three(x); INSERT INTO nowhere VALUES(1)"}};
  const Status failed = sqlite::migrate(*connection, steps);
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(failed.message(), HasSubstr("version " + std::to_string(newest + 2)));
  EXPECT_EQ(unwrap(connection->integer("PRAGMA user_version")), newest + 1);
  EXPECT_EQ(unwrap(connection->integer("SELECT count(*) FROM two")), 1);
  EXPECT_EQ(unwrap(connection->integer("SELECT count(*) FROM sqlite_schema WHERE name='three'")),
            0);
  EXPECT_TRUE(sqlite::migrate(*connection, std::span(steps).first(2)).ok());
  EXPECT_EQ(unwrap(connection->integer("SELECT count(*) FROM two")), 1);
}

TEST_F(SqliteStorage, AnotherProgramsDatabaseIsNotTouched) {
  std::filesystem::create_directories(data());
  tamper("CREATE TABLE theirs(x)");
  EXPECT_CODE(open(), kDataLoss);
  tamper("INSERT INTO theirs VALUES(1)");
}

TEST_F(SqliteStorage, DamageIsReported) {
  {
    const auto catalog = unwrap(open());
    for (int i = 0; i < 200; ++i) {
      unwrap(add(*catalog, "fact number " + std::to_string(i)));
    }
  }
  const auto size = std::filesystem::file_size(file());
  {
    std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
    for (std::uintmax_t page = 1; page < size / 4096; ++page) {  // all but the first page
      stream.seekp(static_cast<std::streamoff>(page * 4096));
      stream << std::string(4096, '\xA5');
    }
  }
  const auto damaged = open();
  const Status status =
      damaged.ok() ? (*damaged)->list_facts(Scope(), Filter(), 10, "").status() : damaged.status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
  EXPECT_THAT(status.message(), AllOf(HasSubstr(file().string()), HasSubstr("backup")));
}

TEST_F(SqliteStorage, GarbageIsNotACatalog) {
  std::filesystem::create_directories(data());
  std::ofstream(file()) << std::string(10'000, 'g');
  EXPECT_CODE(open(), kDataLoss);
  std::ofstream(file(), std::ios::trunc) << "SQLite format 3";
  EXPECT_FALSE(open().ok());
}

TEST_F(SqliteStorage, TruncationIsReported) {
  {
    const auto catalog = unwrap(open());
    for (int i = 0; i < 200; ++i) {
      unwrap(add(*catalog, "fact number " + std::to_string(i)));
    }
  }
  std::filesystem::resize_file(file(), std::filesystem::file_size(file()) / 2);
  const auto damaged = open();
  const Status status = damaged.ok() ? (*damaged)->list_facts(Scope(), Filter(), 1000, "").status()
                                     : damaged.status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
}

TEST_F(SqliteStorage, AFullCatalogSaysSoAndStaysUsable) {
  const auto catalog = unwrap(open(std::uint64_t{1} << 20));
  std::vector<std::string> ids;
  Status status;
  while (status.ok() && ids.size() < 1000) {
    const auto outcome = add(*catalog, std::to_string(ids.size()) + " " + std::string(20'000, 'x'));
    status = outcome.status();
    if (outcome.ok()) {
      ids.push_back(outcome->front().id);
    }
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(file().string()), HasSubstr("space")));
  EXPECT_EQ(count(*catalog), ids.size()) << "what was acknowledged is there, nothing else";
  EXPECT_LE(std::filesystem::file_size(file()), std::uint64_t{1} << 20);
  const EraseOutcome erased =
      unwrap(catalog->erase_facts(Scope(), std::span(ids).first(10), false));
  EXPECT_TRUE(erased.verified) << erased.note;
  EXPECT_TRUE(add(*catalog, "fits again").ok());
}

/// Only where this user may mount (CI containers may not): a real file system that is too small.
TEST_F(SqliteStorage, AFullDiskSaysSoAndLosesNothing) {
  std::filesystem::create_directories(data());
  if (::mount("tmpfs", data().c_str(), "tmpfs", 0, "size=1M") != 0) {
    GTEST_SKIP() << "cannot mount a small file system here";
  }
  std::size_t added = 0;
  {
    const auto catalog = unwrap(open());
    Status status;
    while (status.ok() && added < 1000) {
      status = add(*catalog, std::to_string(added) + " " + std::string(20'000, 'x')).status();
      added += status.ok() ? 1 : 0;
    }
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
    EXPECT_GT(added, 5U);
    EXPECT_EQ(count(*catalog), added);
  }
  EXPECT_EQ(::mount("", data().c_str(), "", MS_REMOUNT, "size=8M"), 0);
  {
    const auto catalog = unwrap(open());
    EXPECT_EQ(count(*catalog), added);
    EXPECT_TRUE(add(*catalog, "space returned").ok());
  }
  EXPECT_EQ(::umount(data().c_str()), 0);
}

/// In a child that is nobody: the superuser may write anywhere.
TEST_F(SqliteStorage, AReadOnlyDirectoryIsUnavailable) {
  unwrap(add(*unwrap(open()), "x"));
  ::chmod(directory_.path().c_str(), 0755);
  ::chmod(data().c_str(), 0555);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) {
      ::_exit(0);
    }
    const auto refused = open();
    const auto unmade = open_sqlite_catalog({data() / "below", 0});
    const auto unavailable = [](const auto& result) {
      return !result.ok() && result.status().code() == StatusCode::kUnavailable;
    };
    ::_exit(unavailable(refused) && unavailable(unmade) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::chmod(data().c_str(), 0700);
  EXPECT_EQ(count(*unwrap(open())), 1U);
}

}  // namespace
}  // namespace inferscale::testing
