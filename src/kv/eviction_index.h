#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "inferscale/kv_record.h"

namespace inferscale {

/// Tokens to prefill to have a record again: its own, and those it was encoded behind.
[[nodiscard]] inline double recompute_tokens(const RecordMeta& meta, std::uint32_t n_tokens) {
  return static_cast<double>(n_tokens) + static_cast<double>(meta.context_tokens);
}

/// Down to how many bytes a full tier evicts: a sixteenth of the budget below it, in whole records
/// of `size`, so that a tier at its limit evicts in batches and not once for every put.
[[nodiscard]] inline std::uint64_t low_watermark(std::uint64_t budget, std::uint64_t size) {
  return budget - (size == 0 ? 0 : budget / 16 / size * size);
}

/// Entries by key in the order in which they give way, with the sum of their sizes. Not
/// thread-safe. Two segments: what was never used since it came gives way before what was, so that
/// a pass over many records does not drive out those in use (segmented LRU; Karedla, Love, Wherry,
/// 1994). Within a segment, those give way first whose loss costs least per byte, aged by use
/// (GreedyDual-Size; Cao, Irani, 1997); at equal cost per byte this is the least recently used.
template <typename Value>
class EvictionIndex {
 public:
  struct Entry {
    RecordKey key;
    std::uint64_t bytes = 0;
    double cost = 0;  ///< of having it again, in any unit that is the same for all
    Value value;
  };

  /// Used entries are kept apart up to `protected_bytes`, above which the oldest of them go back.
  explicit EvictionIndex(std::uint64_t protected_bytes) : protected_limit_(protected_bytes) {}

  /// Null when absent. Stays valid until the entry is removed.
  [[nodiscard]] Entry* find(const RecordKey& key) {
    const auto found = nodes_.find(key);
    return found == nodes_.end() ? nullptr : &found->second.entry;
  }
  [[nodiscard]] const Entry* find(const RecordKey& key) const {
    return const_cast<EvictionIndex*>(this)->find(key);
  }

  /// As `find`, and counts as a use.
  [[nodiscard]] Entry* use(const RecordKey& key) {
    const auto found = nodes_.find(key);
    if (found == nodes_.end()) {
      return nullptr;
    }
    place(found->second, true);
    while (protected_bytes_ > protected_limit_) {
      const auto oldest = order_.lower_bound(Rank{true, 0, 0, {}});
      place(nodes_.at(oldest->key), false);
    }
    return &found->second.entry;
  }

  /// REQUIRES: absent.
  void insert(Entry entry) {
    bytes_ += entry.bytes;
    const RecordKey key = entry.key;
    place(nodes_.emplace(key, Node{std::move(entry), Rank{false, 0, 0, key}}).first->second, false);
  }

  /// The removed value, or an empty one.
  Value remove(const RecordKey& key) {
    const auto found = nodes_.find(key);
    if (found == nodes_.end()) {
      return Value{};
    }
    Node& node = found->second;
    Value value = std::move(node.entry.value);
    bytes_ -= node.entry.bytes;
    protected_bytes_ -= node.rank.is_protected ? node.entry.bytes : 0;
    order_.erase(node.rank);
    nodes_.erase(found);
    return value;
  }

  /// As `remove`, because it gave way: what is used from now on outlives what was not used since.
  Value evict(const RecordKey& key) {
    if (const auto found = nodes_.find(key); found != nodes_.end()) {
      age_ = std::max(age_, found->second.rank.priority);
    }
    return remove(key);
  }

  /// Calls `visit(const Entry&) -> bool` in the order of giving way until it returns false.
  template <typename Visit>
  void in_eviction_order(Visit visit) const {
    for (const Rank& rank : order_) {
      if (!visit(nodes_.at(rank.key).entry)) {
        return;
      }
    }
  }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t size() const { return nodes_.size(); }

 private:
  struct Rank {
    bool is_protected = false;
    double priority = 0;
    std::uint64_t turn = 0;  ///< unique, rises with every use
    RecordKey key;
    friend bool operator<(const Rank& a, const Rank& b) {
      return std::tie(a.is_protected, a.priority, a.turn) <
             std::tie(b.is_protected, b.priority, b.turn);
    }
  };
  struct Node {
    Entry entry;
    Rank rank;
  };

  void place(Node& node, bool is_protected) {
    order_.erase(node.rank);
    protected_bytes_ -= node.rank.is_protected ? node.entry.bytes : 0;
    protected_bytes_ += is_protected ? node.entry.bytes : 0;
    const auto bytes = static_cast<double>(std::max<std::uint64_t>(node.entry.bytes, 1));
    node.rank.is_protected = is_protected;
    node.rank.priority = age_ + node.entry.cost / bytes;
    node.rank.turn = ++turn_;
    order_.insert(node.rank);
  }

  std::unordered_map<RecordKey, Node> nodes_;
  std::set<Rank> order_;
  double age_ = 0;
  std::uint64_t turn_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t protected_bytes_ = 0;
  const std::uint64_t protected_limit_;
};

}  // namespace inferscale
