// A process is killed in the middle of its writes: what it acknowledged is there, nothing is half
// there, and the next process may open the directory at once.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "catalog/sqlite/connection.h"
#include "catalog/sqlite/sqlite_catalog.h"
#include "catalog/sqlite/tokenizer.h"
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

/// Adds, updates and erases until it is killed. Each operation is told before it starts ("add 7")
/// and after it was acknowledged ("done").
[[noreturn]] void write_until_killed(const std::filesystem::path& directory, int pipe, int first) {
  auto opened = open_sqlite_catalog({directory, 0});
  if (!opened.ok()) {
    ::_exit(1);
  }
  Catalog& catalog = **opened;
  std::mt19937 random(static_cast<unsigned>(first));
  std::vector<std::string> ids;
  const auto tell = [pipe](const std::vector<std::string>& words) {
    std::string line;
    for (const std::string& word : words) {
      line += word;
    }
    line += '\n';
    if (::write(pipe, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      ::_exit(2);
    }
  };
  for (int number = first;; ++number) {
    const unsigned choice = ids.empty() ? 0 : static_cast<unsigned>(random() % 4);
    const std::size_t victim = ids.empty() ? 0 : random() % ids.size();
    bool ok = false;
    if (choice < 2) {
      NewFact item;
      item.text = "fact " + std::to_string(number);
      item.vectors = unit_vectors(2);
      item.source_turns = {"turn " + std::to_string(number)};
      tell({"add ", item.text});
      const auto outcome = catalog.add_facts(std::span(&item, 1));
      ok = outcome.ok();
      ids.push_back(ok ? outcome->front().id : "");
      tell({"id ", ids.back()});
    } else if (choice == 2) {
      FactPatch patch;
      patch.text = "changed " + std::to_string(number);
      tell({"set ", ids[victim], " ", *patch.text});
      ok = catalog.update_fact(Scope(), ids[victim], patch).ok();
    } else {
      tell({"erase ", ids[victim]});
      ok = catalog.erase_facts(Scope(), std::span(&ids[victim], 1), false).ok();
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    tell({ok ? "done" : "failed"});
  }
}

/// Appends what comes until there are `lines` lines, or the writer is gone.
void read_lines(int pipe, std::ptrdiff_t lines, std::string& text) {
  char buffer[4096];
  while (std::count(text.begin(), text.end(), '\n') < lines) {
    const ssize_t n = ::read(pipe, buffer, sizeof(buffer));
    if (n <= 0) {
      return;
    }
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

class SqliteCrash : public ::testing::Test {
 protected:
  /// Runs a writer until it told `lines` lines and some time went by, kills it, and returns all
  /// that it told.
  std::string run_and_kill(int first, int lines, std::chrono::microseconds later) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      write_until_killed(directory_.path(), ends[1], first);
    }
    ::close(ends[1]);
    std::string told;
    read_lines(ends[0], lines, told);
    std::this_thread::sleep_for(later);
    ::kill(child, SIGKILL);
    read_lines(ends[0], PTRDIFF_MAX, told);
    ::close(ends[0]);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself: " << status;
    return told;
  }

  /// Brings what must be there up to date; returns the operation that was under way, if any.
  std::string replay(const std::string& told) {
    std::istringstream lines(told);
    std::string pending;
    std::string id;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("id ")) {
        id = line.substr(3);
      } else if (line == "done") {
        apply(pending, id);
        pending.clear();
      } else {
        EXPECT_NE(line, "failed");
        pending = line;
      }
    }
    return pending;
  }

  void apply(const std::string& operation, const std::string& new_id) {
    if (operation.starts_with("add ")) {
      expected_[new_id] = operation.substr(4);
    } else if (operation.starts_with("set ")) {
      const std::size_t space = operation.find(' ', 4);
      expected_[operation.substr(4, space - 4)] = operation.substr(space + 1);
    } else {
      expected_.erase(operation.substr(6));
    }
  }

  /// Compares with the catalog, which may have the pending operation done or not done.
  void check(Catalog& catalog, const std::string& pending) {
    std::map<std::string, std::string> found;
    for (const Fact& item : unwrap(catalog.list_facts(Scope(), Filter(), 100'000, "")).facts) {
      found[item.id] = item.text;
      // Everything that was written with it is there with it.
      const std::string number = item.text.substr(item.text.find(' ') + 1);
      const auto hits = unwrap(catalog.keyword_search(Scope(), number, 10));
      ASSERT_FALSE(hits.empty()) << item.text;
      EXPECT_EQ(hits.front().fact_id, item.id);
      EXPECT_EQ(unwrap(catalog.history(Scope(), item.id)).size(), item.version);
    }
    if (found != expected_) {
      std::string new_id;
      for (const auto& [id, text] : found) {
        new_id = pending.ends_with(text) ? id : new_id;
      }
      ASSERT_FALSE(pending.empty());
      apply(pending, new_id);
      EXPECT_EQ(found, expected_) << "pending: " << pending;
    }
  }

  void check_integrity() {
    const auto connection = unwrap(sqlite::Connection::open(directory_.path() / "catalog.sqlite",
                                                            sqlite::Connection::Mode::kReadWrite));
    const auto tokenizer = unwrap(sqlite::KeywordTokenizer::attach(*connection));
    sqlite::Statement result = unwrap(connection->prepare("PRAGMA integrity_check"));
    EXPECT_TRUE(unwrap(result.step()));
    EXPECT_EQ(result.text(0), "ok");
    sqlite::Statement keys = unwrap(connection->prepare("PRAGMA foreign_key_check"));
    EXPECT_FALSE(unwrap(keys.step()));
    EXPECT_TRUE(
        connection->exec("INSERT INTO keywords(keywords, rank) VALUES('integrity-check', 1)").ok());
  }

  CatalogDirectory directory_;
  std::map<std::string, std::string> expected_;  // id -> text
};

TEST_F(SqliteCrash, AcknowledgedWritesSurviveKill) {
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    const std::string told = run_and_kill(round * 100'000, 1 + static_cast<int>(random() % 60),
                                          std::chrono::microseconds(random() % 8000));
    const std::string pending = replay(told);
    check(*unwrap(open_sqlite_catalog({directory_.path(), 0})), pending);
    check_integrity();
    if (HasFatalFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace inferscale::testing
