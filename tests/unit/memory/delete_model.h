#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace inferscale {

/// What a memory service ought to hold and to erase, kept in plain maps: written from
/// docs/deletion.md, it shares nothing with the service. Facts are named by a number of the test.
class DeleteModel {
 public:
  struct Version {
    std::vector<std::string> words;  ///< that occur in this version alone
  };
  struct Record {
    std::size_t version = 1;
    std::set<std::pair<int, std::size_t>> saw;  ///< (fact, version)
    std::set<std::string> saw_turns;            ///< ids, which no two scopes share
  };
  struct Fact {
    std::string scope;
    std::string tag;
    std::vector<Version> versions;  ///< superseded ones first; erased ones keep their place, empty
    std::size_t archived = 0;       ///< superseded versions that are not erased
    std::set<std::string> turns;
    std::optional<Record> record;
    [[nodiscard]] std::size_t live() const { return versions.size(); }
  };
  struct Receipt {
    std::uint64_t facts = 0, history = 0, turns = 0, records = 0, dependants = 0;
    std::vector<std::string> words;  ///< that must be gone
  };

  std::map<int, Fact> facts;
  std::map<std::string, std::map<std::string, std::string>> turns;  ///< scope → id → its word

  /// Facts whole; with `scope` all turns of that scope too.
  Receipt erase(const std::set<int>& doomed, const std::optional<std::string>& scope,
                bool keep_turns) {
    Receipt receipt;
    std::map<std::string, std::set<std::string>> loose;  // turns, by scope
    for (const int id : doomed) {
      const Fact& fact = facts.at(id);
      ++receipt.facts;
      receipt.history += fact.archived;
      loose[fact.scope].insert(fact.turns.begin(), fact.turns.end());
      for (const Version& version : fact.versions) {
        receipt.words.insert(receipt.words.end(), version.words.begin(), version.words.end());
      }
    }
    if (scope) {
      for (const auto& [id, word] : turns[*scope]) {
        loose[*scope].insert(id);
      }
    }
    std::set<std::string> erased_turns;
    for (const auto& [place, ids] : loose) {
      for (const std::string& id : ids) {
        if (!keep_turns && turns[place].contains(id) && !is_cited(place, id, doomed)) {
          ++receipt.turns;
          receipt.words.push_back(turns[place][id]);
          turns[place].erase(id);
          erased_turns.insert(id);
        }
      }
    }
    drop_records(
        receipt, doomed, [&](int fact, std::size_t) { return doomed.contains(fact); },
        erased_turns);
    for (const int id : doomed) {
      facts.erase(id);
    }
    return receipt;
  }

  /// Superseded versions only.
  Receipt erase_old(const std::set<int>& chosen) {
    Receipt receipt;
    for (const int id : chosen) {
      Fact& fact = facts.at(id);
      receipt.history += fact.archived;
      fact.archived = 0;
      for (std::size_t i = 0; i + 1 < fact.versions.size(); ++i) {
        std::vector<std::string>& words = fact.versions[i].words;
        receipt.words.insert(receipt.words.end(), words.begin(), words.end());
        words.clear();
      }
    }
    drop_records(receipt, {}, [&](int fact, std::size_t version) {
      return chosen.contains(fact) && version < facts.at(fact).live();
    });
    return receipt;
  }

  [[nodiscard]] std::size_t records() const {
    std::size_t count = 0;
    for (const auto& [id, fact] : facts) {
      count += fact.record ? 1 : 0;
    }
    return count;
  }

 private:
  /// Records of versions that go, and records that saw one, or a turn that goes.
  template <typename Goes>
  void drop_records(Receipt& receipt, const std::set<int>& doomed, Goes goes,
                    const std::set<std::string>& erased_turns = {}) {
    for (auto& [id, fact] : facts) {
      if (!fact.record) {
        continue;
      }
      bool drop = goes(id, fact.record->version);
      for (const auto& [seen, version] : fact.record->saw) {
        drop = drop || goes(seen, version);
      }
      for (const std::string& turn : fact.record->saw_turns) {
        drop = drop || erased_turns.contains(turn);
      }
      if (drop) {
        ++receipt.records;
        receipt.dependants += fact.record->version == fact.live() && !doomed.contains(id) ? 1 : 0;
        fact.record.reset();
      }
    }
  }

  [[nodiscard]] bool is_cited(const std::string& scope, const std::string& turn,
                              const std::set<int>& doomed) const {
    for (const auto& [id, fact] : facts) {
      if (fact.scope == scope && fact.turns.contains(turn) && !doomed.contains(id)) {
        return true;
      }
    }
    return false;
  }
};

}  // namespace inferscale
