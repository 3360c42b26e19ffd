#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include "inferscale/kv_record.h"

namespace inferscale {

/// Entries by key in order of use, with the sum of their sizes. Not thread-safe.
template <typename Value>
class LruIndex {
 public:
  struct Entry {
    RecordKey key;
    std::uint64_t bytes = 0;
    Value value;
  };

  /// Null when absent. Stays valid until the entry is removed or replaced.
  [[nodiscard]] Entry* find(const RecordKey& key) {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : &*found->second;
  }
  [[nodiscard]] const Entry* find(const RecordKey& key) const {
    return const_cast<LruIndex*>(this)->find(key);
  }

  /// As `find`, and makes the entry the most recently used.
  [[nodiscard]] Entry* use(const RecordKey& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) {
      return nullptr;
    }
    order_.splice(order_.end(), order_, found->second);
    return &*found->second;
  }

  /// REQUIRES: absent.
  void insert(Entry entry) {
    bytes_ += entry.bytes;
    order_.push_back(std::move(entry));
    by_key_.emplace(order_.back().key, std::prev(order_.end()));
  }

  /// The removed value, or an empty one.
  Value remove(const RecordKey& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) {
      return Value{};
    }
    Value value = std::move(found->second->value);
    bytes_ -= found->second->bytes;
    order_.erase(found->second);
    by_key_.erase(found);
    return value;
  }

  [[nodiscard]] const std::list<Entry>& oldest_first() const { return order_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t size() const { return by_key_.size(); }

 private:
  std::list<Entry> order_;
  std::unordered_map<RecordKey, typename std::list<Entry>::iterator> by_key_;
  std::uint64_t bytes_ = 0;
};

}  // namespace inferscale
