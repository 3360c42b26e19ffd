#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"

namespace inferscale {

/// Counts the leases that are out, by key. Thread-safe; outlives its store while leases are out.
class LeaseTable : public std::enable_shared_from_this<LeaseTable> {
 public:
  /// A lease on `record` that counts until it is released.
  [[nodiscard]] Lease grant(const RecordKey& key, std::shared_ptr<const Record> record) {
    auto pin = std::make_shared<Pin>(shared_from_this(), key, std::move(record));
    const Record* pinned = pin->record.get();
    return Lease(std::shared_ptr<const Record>(std::move(pin), pinned));
  }

  [[nodiscard]] bool leased(const RecordKey& key) const {
    const std::lock_guard lock(mutex_);
    return count_by_key_.contains(key);
  }

  [[nodiscard]] std::uint64_t active() const {
    const std::lock_guard lock(mutex_);
    return active_;
  }

 private:
  struct Pin {
    Pin(std::shared_ptr<LeaseTable> owner, const RecordKey& of, std::shared_ptr<const Record> held)
        : table(std::move(owner)), key(of), record(std::move(held)) {
      table->add(key);
    }
    ~Pin() { table->remove(key); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    const std::shared_ptr<LeaseTable> table;
    const RecordKey key;
    const std::shared_ptr<const Record> record;
  };

  void add(const RecordKey& key) {
    const std::lock_guard lock(mutex_);
    ++count_by_key_[key];
    ++active_;
  }

  void remove(const RecordKey& key) {
    const std::lock_guard lock(mutex_);
    --active_;
    const auto found = count_by_key_.find(key);
    if (--found->second == 0) {
      count_by_key_.erase(found);
    }
  }

  mutable std::mutex mutex_;
  std::unordered_map<RecordKey, std::uint64_t> count_by_key_;
  std::uint64_t active_ = 0;
};

}  // namespace inferscale
