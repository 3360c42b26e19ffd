// Random histories of facts encoded behind each other's text and KV, against a plain model.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "conformance/catalog_suite.h"

namespace inferscale::testing {
namespace {

const Scope kAlice = user_scope("alice");

/// What the catalog ought to know, kept in maps and searched without any index.
class Model {
 public:
  struct Record {
    unsigned key = 0;
    std::string fact;
    std::uint32_t version = 1;
    std::set<std::pair<std::string, std::uint32_t>> saw;  ///< versions, through KV too
  };

  std::map<std::string, std::uint32_t> versions;  ///< live ones
  std::map<std::string, Record> records;          ///< current, by fact

  struct Expected {
    std::set<unsigned> keys;
    std::set<std::string> dependants;
    std::uint64_t history = 0;
  };

  /// Drops the records for which `goes` holds; what lost one of its live version is a dependant.
  template <typename Goes>
  Expected drop(Goes goes) {
    Expected expected;
    for (auto at = records.begin(); at != records.end();) {
      const Record& record = at->second;
      if (!goes(record)) {
        ++at;
        continue;
      }
      expected.keys.insert(record.key);
      const auto live = versions.find(record.fact);
      if (live != versions.end() && live->second == record.version) {
        expected.dependants.insert(record.fact);
      }
      at = records.erase(at);
    }
    return expected;
  }

  Expected erase(const std::set<std::string>& ids) {
    std::uint64_t history = 0;
    for (const std::string& id : ids) {
      history += erased_history(id);
      versions.erase(id);
      archived.erase(id);
    }
    Expected expected = drop([&](const Record& record) {
      return ids.contains(record.fact) ||
             std::any_of(record.saw.begin(), record.saw.end(),
                         [&](const auto& seen) { return ids.contains(seen.first); });
    });
    expected.history = history;
    return expected;
  }

  Expected erase_old(const std::string& id) {
    const std::uint32_t live = versions.at(id);
    Expected expected = drop([&](const Record& record) {
      return (record.fact == id && record.version < live) ||
             std::any_of(record.saw.begin(), record.saw.end(),
                         [&](const auto& seen) { return seen.first == id && seen.second < live; });
    });
    expected.history = erased_history(id);
    archived[id] = 0;
    return expected;
  }

  std::map<std::string, std::uint64_t> archived;  ///< superseded versions that are kept

 private:
  [[nodiscard]] std::uint64_t erased_history(const std::string& id) const {
    const auto found = archived.find(id);
    return found == archived.end() ? 0 : found->second;
  }
};

class History {
 public:
  History(Catalog& catalog, const Hash128& fingerprint, unsigned seed)
      : catalog_(catalog), fingerprint_(fingerprint), random_(seed) {}

  void step() {
    const unsigned choice = pick(12);
    if (model_.versions.size() < 3 || choice < 3) {
      add();
    } else if (choice < 5) {
      update(any());
    } else if (choice < 9) {
      encode(any());
    } else if (choice < 11) {
      erase();
    } else {
      erase_old(any());
    }
  }

  /// Every record that is left is the model's.
  void check_records() {
    std::set<RecordKey> expected;
    for (const auto& [id, record] : model_.records) {
      expected.insert(RecordKey{hash_of(record.key)});
    }
    const std::vector<RecordKey> keys = unwrap(catalog_.all_record_keys());
    EXPECT_EQ(std::set<RecordKey>(keys.begin(), keys.end()), expected);
  }

 private:
  unsigned pick(unsigned n) { return static_cast<unsigned>(random_() % n); }
  std::string any() {
    return std::next(model_.versions.begin(), pick(static_cast<unsigned>(model_.versions.size())))
        ->first;
  }

  void add() {
    NewFact item;
    item.scope = kAlice;
    item.text = "fact " + std::to_string(++texts_);
    const std::string id = unwrap(catalog_.add_facts(std::span(&item, 1))).front().id;
    model_.versions[id] = 1;
  }

  void update(const std::string& id) {
    FactPatch patch;
    patch.text = "fact " + std::to_string(++texts_);
    unwrap(catalog_.update_fact(kAlice, id, patch));
    ++model_.versions[id];
    ++model_.archived[id];
  }

  /// Behind the text of some facts and the KV of some records.
  void encode(const std::string& id) {
    RecordEntry entry;
    Model::Record record{++keys_, id, model_.versions[id], {}};
    entry.fact = {id, record.version};
    entry.model_fingerprint = fingerprint_;
    entry.context = "log:4";
    entry.key = RecordKey{hash_of(record.key)};
    entry.scope = scope_hash(kAlice);
    entry.n_tokens = 1;
    for (unsigned i = pick(3); i > 0; --i) {
      const std::string seen = any();
      if (seen != id) {
        entry.attended_facts.push_back({seen, model_.versions[seen]});
        record.saw.emplace(seen, model_.versions[seen]);
      }
    }
    for (const auto& [fact, behind] : model_.records) {
      if (fact != id && pick(4) == 0) {
        entry.attended_records.push_back(RecordKey{hash_of(behind.key)});
        record.saw.emplace(behind.fact, behind.version);
        record.saw.insert(behind.saw.begin(), behind.saw.end());
      }
    }
    // The KV of a fact's own older record may have been among what its neighbours saw.
    const Status status = catalog_.commit_record(entry).status();
    ASSERT_TRUE(status.ok()) << status.to_string();
    model_.records[id] = record;
  }

  void erase() {
    std::set<std::string> ids;
    for (unsigned i = 1 + pick(2); i > 0; --i) {
      ids.insert(any());
    }
    const EraseOutcome outcome =
        unwrap(catalog_.erase_facts(kAlice, std::vector(ids.begin(), ids.end()), false));
    EXPECT_EQ(outcome.facts, ids.size());
    compare(outcome, model_.erase(ids));
  }

  void erase_old(const std::string& id) {
    EraseRequest request;
    request.scope = kAlice;
    request.ids = {id};
    request.old_versions = true;
    compare(unwrap(catalog_.erase(request)), model_.erase_old(id));
  }

  void compare(const EraseOutcome& outcome, const Model::Expected& expected) {
    EXPECT_TRUE(outcome.verified) << outcome.note;
    EXPECT_EQ(outcome.history, expected.history);
    std::set<RecordKey> keys;
    for (const unsigned key : expected.keys) {
      keys.insert(RecordKey{hash_of(key)});
    }
    EXPECT_EQ(std::set<RecordKey>(outcome.records.begin(), outcome.records.end()), keys);
    std::set<std::string> dependants;
    for (const FactRef& ref : outcome.dependants) {
      dependants.insert(ref.id);
    }
    EXPECT_EQ(dependants, expected.dependants);
  }

  Catalog& catalog_;
  const Hash128 fingerprint_;
  std::mt19937 random_;
  Model model_;
  unsigned texts_ = 0;
  unsigned keys_ = 0;
};

TEST_P(CatalogSuite, RandomChainsOfInjectedKv) {
  for (unsigned seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    History history(catalog(), kModel, seed);
    for (int step = 0; step < 25; ++step) {
      history.step();
      history.check_records();
      ASSERT_FALSE(HasFailure()) << "step " << step;
    }
    EraseRequest all;
    all.scope = kAlice;
    all.whole_scope = true;
    EXPECT_TRUE(unwrap(catalog().erase(all)).verified);
    EXPECT_TRUE(unwrap(catalog().all_record_keys()).empty());
  }
}

}  // namespace
}  // namespace inferscale::testing
