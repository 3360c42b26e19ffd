// Many threads at once. Small numbers, so that it is quick under ThreadSanitizer too.
#include <atomic>
#include <set>
#include <thread>

#include "catalog/sqlite/sqlite_catalog.h"
#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

class SqliteConcurrency : public ::testing::Test {
 protected:
  SqliteConcurrency() : catalog_(unwrap(open_sqlite_catalog({directory_.path(), 0}))) {}

  AddOutcome add(std::string text) {
    NewFact item;
    item.text = std::move(text);
    item.vectors = unit_vectors(1);
    return unwrap(catalog_->add_facts(std::span(&item, 1))).front();
  }

  template <typename Body>
  static void in_threads(int count, Body body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back(body, i);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  RecordEntry entry(const std::string& id, unsigned key, const std::vector<FactRef>& attended) {
    RecordEntry result;
    result.fact = {id, 1};
    result.context = "window:8";
    result.key = RecordKey{hash_of(key)};
    result.scope = scope_hash(Scope());
    result.attended_facts = attended;
    return result;
  }

  CatalogDirectory directory_;
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(SqliteConcurrency, DuplicatesAreFoundWhoeverComesFirst) {
  constexpr int kThreads = 6;
  constexpr int kFacts = 20;
  std::vector<std::vector<AddOutcome>> outcomes(kThreads);
  in_threads(kThreads, [&](int thread) {
    for (int i = 0; i < kFacts; ++i) {
      outcomes[static_cast<std::size_t>(thread)].push_back(add("fact " + std::to_string(i)));
    }
  });
  EXPECT_EQ(unwrap(catalog_->counts_all()).facts, std::uint64_t{kFacts});
  for (std::size_t i = 0; i < kFacts; ++i) {
    int created = 0;
    for (const auto& of_thread : outcomes) {
      created += of_thread[i].existed ? 0 : 1;
      EXPECT_EQ(of_thread[i].id, outcomes[0][i].id);
    }
    EXPECT_EQ(created, 1);
  }
}

TEST_F(SqliteConcurrency, CompareAndSetLetsOneWin) {
  const std::string id = add("counter").id;
  std::atomic<int> won{0};
  constexpr int kThreads = 6;
  in_threads(kThreads, [&](int thread) {
    for (int i = 0; i < 5; ++i) {
      FactPatch patch;
      patch.if_version = unwrap(catalog_->get_fact(Scope(), id)).version;
      patch.text = "by " + std::to_string(thread) + " " + std::to_string(i);
      const auto result = catalog_->update_fact(Scope(), id, patch);
      won += result.ok() ? 1 : 0;
      EXPECT_TRUE(result.ok() || result.status().code() == StatusCode::kConflict)
          << result.status().to_string();
    }
  });
  const auto versions = unwrap(catalog_->history(Scope(), id));
  EXPECT_EQ(versions.size(), static_cast<std::size_t>(won) + 1) << "no update was lost";
}

TEST_F(SqliteConcurrency, CommitRacesWithUpdateAndDelete) {
  for (int round = 0; round < 12; ++round) {
    const std::string seen = add("seen " + std::to_string(round)).id;
    const std::string fact = add("fact " + std::to_string(round)).id;
    const auto key = static_cast<unsigned>(round) + 100;
    std::atomic<bool> committed{false};
    EraseOutcome erased;
    in_threads(2, [&](int thread) {
      if (thread == 0) {
        const auto result = catalog_->commit_record(entry(fact, key, {{seen, 1}}));
        committed = result.ok();
        EXPECT_TRUE(result.ok() || result.status().code() == StatusCode::kConflict);
      } else {
        erased = unwrap(catalog_->erase_facts(Scope(), std::vector{seen}, false));
      }
    });
    // Whoever came first: no entry that saw the erased fact is left, and none was lost silently.
    const FactRef ref{fact, 1};
    EXPECT_FALSE(unwrap(catalog_->records_of(std::span(&ref, 1), Hash128())).front().has_value());
    EXPECT_EQ(erased.records.size(), committed ? 1U : 0U);
    EXPECT_EQ(erased.dependants.size(), committed ? 1U : 0U);
  }
  EXPECT_TRUE(unwrap(catalog_->all_record_keys()).empty());
}

TEST_F(SqliteConcurrency, CommitRacesWithUpdate) {
  for (int round = 0; round < 12; ++round) {
    const std::string seen = add("seen " + std::to_string(round)).id;
    const std::string fact = add("fact " + std::to_string(round)).id;
    std::atomic<bool> committed{false};
    in_threads(2, [&](int thread) {
      if (thread == 0) {
        committed = catalog_->commit_record(entry(fact, 7, {{seen, 1}})).ok();
      } else {
        FactPatch patch;
        patch.text = "changed " + std::to_string(round);
        EXPECT_TRUE(catalog_->update_fact(Scope(), seen, patch).ok());
      }
    });
    const FactRef ref{fact, 1};
    EXPECT_EQ(unwrap(catalog_->records_of(std::span(&ref, 1), Hash128())).front().has_value(),
              committed.load());
    bool to_encode = false;
    for (const Fact& item :
         unwrap(catalog_->facts_to_encode({Hash128(), "window:8", 0, {}}, 1000)).facts) {
      to_encode = to_encode || item.id == fact;
    }
    EXPECT_TRUE(to_encode) << "missing or stale, never taken for current";
  }
}

TEST_F(SqliteConcurrency, EverythingAtOnce) {
  std::atomic<bool> stop{false};
  std::atomic<int> searches{0};
  std::set<std::string> kept;
  std::thread readers([&] {
    in_threads(3, [&](int thread) {
      while (!stop) {
        if (thread == 0) {
          unwrap(catalog_->keyword_search(Scope(), "fact", 10));
        } else if (thread == 1) {
          const VectorRows rows = unwrap(catalog_->vectors(Scope(), "test/4"));
          EXPECT_EQ(rows.values.size(), rows.fact_ids.size() * 4);
        } else {
          const FactPage page = unwrap(catalog_->list_facts(Scope(), Filter(), 100, ""));
          for (const Fact& item : page.facts) {
            EXPECT_FALSE(item.text.empty());
          }
        }
        ++searches;
      }
    });
  });
  in_threads(2, [&](int thread) {
    for (int i = 0; i < 15; ++i) {
      const std::string name = std::to_string(thread) + "-" + std::to_string(i);
      const std::string id = add("fact " + name).id;
      FactPatch patch;
      patch.text = "fact changed " + name;
      unwrap(catalog_->update_fact(Scope(), id, patch));
      if (i % 2 == 0) {
        EXPECT_TRUE(unwrap(catalog_->erase_facts(Scope(), std::vector{id}, false)).verified);
      }
    }
  });
  stop = true;
  readers.join();
  EXPECT_GT(searches, 0);
  EXPECT_EQ(unwrap(catalog_->counts_all()).facts, 14U);
}

}  // namespace
}  // namespace inferscale::testing
