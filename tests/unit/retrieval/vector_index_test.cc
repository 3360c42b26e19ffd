#include "retrieval/vector_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <random>
#include <thread>

namespace inferscale {
namespace {

constexpr std::size_t kDim = 24;
const char* const kEmbedder = "test-embedder";

struct StoredFact {
  Scope owner;
  TextVectors vectors;
};

/// What a catalog would hold; the brute-force answer to every search.
class Store {
 public:
  void put(const std::string& id, const Scope& owner, const TextVectors& vectors) {
    const std::lock_guard lock(mutex_);
    facts_[id] = {owner, vectors};
  }
  void remove(const std::string& id) {
    const std::lock_guard lock(mutex_);
    facts_.erase(id);
  }
  Result<VectorRows> rows(const Scope& request) const {
    const std::lock_guard lock(mutex_);
    VectorRows rows;
    rows.dim = kDim;
    for (const auto& [id, fact] : facts_) {
      if (scope_permits(request, fact.owner)) {
        rows.fact_ids.insert(rows.fact_ids.end(), fact.vectors.chunks(), id);
        rows.values.insert(rows.values.end(), fact.vectors.values.begin(),
                           fact.vectors.values.end());
      }
    }
    return rows;
  }
  std::vector<VectorHit> best(const Scope& request, const std::vector<float>& query, std::size_t k,
                              const VectorIndex::IdSet* only) const {
    std::vector<VectorHit> hits;
    for (const auto& [id, fact] : facts_) {
      if (!scope_permits(request, fact.owner) || (only != nullptr && !only->contains(id))) {
        continue;
      }
      float best = -2;
      for (std::size_t chunk = 0; chunk < fact.vectors.chunks(); ++chunk) {
        float dot = 0;
        for (std::size_t i = 0; i < kDim; ++i) {
          dot += fact.vectors.values[chunk * kDim + i] * query[i];
        }
        best = std::max(best, dot);
      }
      hits.push_back({id, best});
    }
    std::sort(hits.begin(), hits.end(),
              [](const auto& a, const auto& b) { return a.score > b.score; });
    hits.resize(std::min(k, hits.size()));
    return hits;
  }
  std::vector<std::string> ids() const {
    std::vector<std::string> ids;
    for (const auto& [id, fact] : facts_) {
      ids.push_back(id);
    }
    return ids;
  }
  const Scope& owner(const std::string& id) const { return facts_.at(id).owner; }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, StoredFact> facts_;
};

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return engine_() % n; }
  TextVectors vectors(std::size_t chunks) {
    TextVectors out{kEmbedder, kDim, std::vector<float>(chunks * kDim)};
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      float square = 0;
      for (std::size_t i = 0; i < kDim; ++i) {
        const float value = normal_(engine_);
        out.values[chunk * kDim + i] = value;
        square += value * value;
      }
      for (std::size_t i = 0; i < kDim; ++i) {
        out.values[chunk * kDim + i] /= std::sqrt(square);
      }
    }
    return out;
  }
  std::vector<float> query() { return vectors(1).values; }
  Scope scope() {
    static const char* const kNames[] = {"", "x", "y"};
    if (below(8) == 0) {
      return {.tenant = "t" + std::to_string(below(2)), .user = "", .agent = "", .run = ""};
    }
    return {.tenant = "t" + std::to_string(below(2)),
            .user = "u" + std::to_string(below(2)),
            .agent = kNames[below(3)],
            .run = kNames[below(3)]};
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

VectorIndex make_index(const Store& store, std::size_t budget = std::size_t{64} << 20) {
  return VectorIndex(kEmbedder, kDim, budget,
                     [&store](const Scope& request) { return store.rows(request); });
}

void expect_same(const std::vector<VectorHit>& got, const std::vector<VectorHit>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].fact_id, want[i].fact_id) << "rank " << i;
    EXPECT_NEAR(got[i].score, want[i].score, 1e-5) << "rank " << i;
  }
}

void expect_matches_brute_force(VectorIndex& index, const Store& store, Random& random,
                                std::size_t searches) {
  for (std::size_t i = 0; i < searches; ++i) {
    const Scope request = random.scope();
    const std::vector<float> query = random.query();
    const std::size_t k = 1 + random.below(40);
    VectorIndex::IdSet only;
    for (const std::string& id : store.ids()) {
      if (random.below(3) == 0) {
        only.insert(id);
      }
    }
    const VectorIndex::IdSet* filter = random.below(2) == 0 ? nullptr : &only;
    const auto got = index.search(request, query, k, filter);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    expect_same(*got, store.best(request, query, k, filter));
  }
}

TEST(VectorIndex, MatchesBruteForceUnderRandomWritesScopesAndFilters) {
  Random random(7);
  Store store;
  VectorIndex index = make_index(store);
  for (int round = 0; round < 40; ++round) {
    for (int write = 0; write < 60; ++write) {
      const std::string id = "f" + std::to_string(random.below(900));
      const auto known = store.ids();
      const bool exists = std::find(known.begin(), known.end(), id) != known.end();
      if (exists && random.below(3) == 0) {
        const Scope owner = store.owner(id);
        store.remove(id);
        index.remove(owner, id);
      } else {
        const Scope owner = exists ? store.owner(id) : random.scope();
        const TextVectors vectors = random.vectors(random.below(5) == 0 ? 4 : 1);
        store.put(id, owner, vectors);
        index.put(owner, id, vectors);
      }
    }
    expect_matches_brute_force(index, store, random, 6);
  }
}

TEST(VectorIndex, RemovedRowsAreCompactedAway) {
  Random random(3);
  Store store;
  VectorIndex index = make_index(store);
  const Scope scope;
  for (int i = 0; i < 2000; ++i) {
    store.put("f" + std::to_string(i), scope, random.vectors(1));
  }
  const auto query = random.query();
  ASSERT_TRUE(index.search(scope, query, 5, nullptr).ok());
  const std::size_t before = index.stats().bytes;
  for (int i = 0; i < 1900; ++i) {
    store.remove("f" + std::to_string(i));
    index.remove(scope, "f" + std::to_string(i));
  }
  EXPECT_EQ(index.stats().rows, 100U);
  EXPECT_LT(index.stats().bytes, before / 2);
  expect_same(*index.search(scope, query, 200, nullptr), store.best(scope, query, 200, nullptr));
  EXPECT_EQ(index.stats().loads, 1U);
}

TEST(VectorIndex, ALongFactDoesNotCrowdOutTheOthers) {
  Random random(5);
  Store store;
  const Scope scope;
  const std::vector<float> query = random.query();
  TextVectors crowd{kEmbedder, kDim, {}};
  for (int chunk = 0; chunk < 1000; ++chunk) {
    crowd.values.insert(crowd.values.end(), query.begin(), query.end());
  }
  store.put("long", scope, crowd);
  for (int i = 0; i < 50; ++i) {
    store.put("f" + std::to_string(i), scope, random.vectors(1));
  }
  VectorIndex index = make_index(store);
  expect_same(*index.search(scope, query, 20, nullptr), store.best(scope, query, 20, nullptr));
}

TEST(VectorIndex, EmptyScopesAndLargeK) {
  Store store;
  Random random(1);
  VectorIndex index = make_index(store);
  const auto empty = index.search(Scope(), random.query(), 10, nullptr);
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->empty());
  const TextVectors vectors = random.vectors(1);
  store.put("only", Scope(), vectors);
  index.put(Scope(), "only", vectors);
  EXPECT_EQ(index.search(Scope(), random.query(), 10'000, nullptr)->size(), 1U);
  const VectorIndex::IdSet nothing;
  EXPECT_TRUE(index.search(Scope(), random.query(), 10, &nothing)->empty());
}

TEST(VectorIndex, VectorsOfAnotherModelOnlyTakeTheOldOnesOut) {
  Store store;
  Random random(1);
  VectorIndex index = make_index(store);
  const TextVectors vectors = random.vectors(1);
  store.put("f", Scope(), vectors);
  ASSERT_EQ(index.search(Scope(), random.query(), 10, nullptr)->size(), 1U);
  TextVectors foreign = vectors;
  foreign.embedder_id = "another";
  index.put(Scope(), "f", foreign);
  EXPECT_TRUE(index.search(Scope(), random.query(), 10, nullptr)->empty());
}

TEST(VectorIndex, KeepsToItsBudgetByLeastRecentUse) {
  Random random(2);
  Store store;
  for (int user = 0; user < 10; ++user) {
    for (int i = 0; i < 100; ++i) {
      store.put(std::to_string(user) + "/" + std::to_string(i),
                {.user = "u" + std::to_string(user)}, random.vectors(1));
    }
  }
  const std::size_t budget = 100'000;  // about three of the ten scopes
  VectorIndex index = make_index(store, budget);
  const auto search = [&](int user) {
    return index.search({.user = "u" + std::to_string(user)}, random.query(), 5, nullptr)->size();
  };
  for (int user = 0; user < 10; ++user) {
    EXPECT_EQ(search(user), 5U);
    EXPECT_LE(index.stats().bytes, budget);
  }
  const std::size_t loads = index.stats().loads;
  EXPECT_EQ(search(9), 5U);
  EXPECT_EQ(index.stats().loads, loads);
  EXPECT_EQ(search(0), 5U);
  EXPECT_EQ(index.stats().loads, loads + 1);
}

TEST(VectorIndex, AScopeAboveTheBudgetIsSearchedAndNotKept) {
  Random random(2);
  Store store;
  for (int i = 0; i < 500; ++i) {
    store.put(std::to_string(i), Scope(), random.vectors(1));
  }
  VectorIndex index = make_index(store, 1000);
  const auto query = random.query();
  for (int i = 0; i < 2; ++i) {
    expect_same(*index.search(Scope(), query, 7, nullptr), store.best(Scope(), query, 7, nullptr));
    EXPECT_EQ(index.stats().bytes, 0U);
  }
}

TEST(VectorIndex, DropForgetsEverythingOfATenantAndReadsItAgain) {
  Random random(2);
  Store store;
  VectorIndex index = make_index(store);
  const Scope mine;
  const Scope other{.tenant = "other"};
  store.put("a", mine, random.vectors(1));
  store.put("b", other, random.vectors(1));
  EXPECT_EQ(index.search(mine, random.query(), 5, nullptr)->size(), 1U);
  EXPECT_EQ(index.search(other, random.query(), 5, nullptr)->size(), 1U);
  store.remove("a");
  index.drop({.tenant = "default", .user = "default", .agent = "x"});
  EXPECT_EQ(index.stats().scopes, 1U);
  EXPECT_TRUE(index.search(mine, random.query(), 5, nullptr)->empty());
}

TEST(VectorIndex, ErrorsAreReportedAndNotRemembered) {
  Store store;
  Random random(2);
  bool broken = true;
  VectorIndex index(kEmbedder, kDim, 1 << 20, [&](const Scope& request) -> Result<VectorRows> {
    if (broken) {
      return unavailable("the disk is gone");
    }
    return store.rows(request);
  });
  EXPECT_EQ(index.search(Scope(), random.query(), 5, nullptr).status().code(),
            StatusCode::kUnavailable);
  broken = false;
  EXPECT_TRUE(index.search(Scope(), random.query(), 5, nullptr).ok());
  EXPECT_EQ(index.search(Scope(), std::vector<float>(kDim - 1), 5, nullptr).status().code(),
            StatusCode::kInvalidArgument);

  VectorIndex damaged(kEmbedder, kDim, 1 << 20, [](const Scope&) -> Result<VectorRows> {
    return VectorRows{.dim = kDim, .fact_ids = {"a", "b"}, .values = std::vector<float>(kDim)};
  });
  EXPECT_EQ(damaged.search(Scope(), random.query(), 5, nullptr).status().code(),
            StatusCode::kDataLoss);
}

TEST(VectorIndex, SearchesDuringWritesAndLoadsEndWithTheStoresContent) {
  Store store;
  VectorIndex index =
      make_index(store, 60'000);  // small, so that scopes are evicted and loaded all the time
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Random random(100 + t);
      while (!stop) {
        const auto hits = index.search(random.scope(), random.query(), 10, nullptr);
        ASSERT_TRUE(hits.ok());
      }
    });
  }
  Random random(9);
  for (int write = 0; write < 3000; ++write) {
    const std::string id = "f" + std::to_string(random.below(300));
    const Scope owner = random.scope();
    const std::string owned = id + to_string(owner);
    if (random.below(4) == 0) {
      store.remove(owned);
      index.remove(owner, owned);
    } else {
      const TextVectors vectors = random.vectors(1);
      store.put(owned, owner, vectors);
      index.put(owner, owned, vectors);
    }
    if (write % 500 == 0) {
      index.drop(owner);
    }
  }
  stop = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  expect_matches_brute_force(index, store, random, 30);
}

}  // namespace
}  // namespace inferscale
