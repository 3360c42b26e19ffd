#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <unordered_map>

#include "inferscale/kv_record.h"

namespace inferscale {

/// Remembers the last `capacity` keys that were inserted. Not thread-safe.
class BoundedKeySet {
 public:
  explicit BoundedKeySet(std::size_t capacity) : capacity_(capacity) {}

  void insert(const RecordKey& key) {
    erase(key);
    order_.push_back(key);
    by_key_.emplace(key, std::prev(order_.end()));
    if (order_.size() > capacity_) {
      by_key_.erase(order_.front());
      order_.pop_front();
    }
  }

  void erase(const RecordKey& key) {
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) {
      order_.erase(found->second);
      by_key_.erase(found);
    }
  }

  /// Removes the key that was inserted first; nothing when empty.
  [[nodiscard]] std::optional<RecordKey> take_oldest() {
    if (order_.empty()) {
      return std::nullopt;
    }
    const RecordKey key = order_.front();
    erase(key);
    return key;
  }

  [[nodiscard]] bool contains(const RecordKey& key) const { return by_key_.contains(key); }

 private:
  std::size_t capacity_;
  std::list<RecordKey> order_;
  std::unordered_map<RecordKey, std::list<RecordKey>::iterator> by_key_;
};

}  // namespace inferscale
