#include "kv/host_tier.h"

#include <fmt/format.h>

#include <utility>

namespace inferscale {

std::optional<std::vector<RecordKey>> HostTier::choose_victims(const RecordKey& key,
                                                               std::uint64_t size) const {
  const auto* old = index_.find(key);
  std::uint64_t used = index_.bytes() - (old != nullptr ? old->bytes : 0);
  std::vector<RecordKey> victims;
  if (used + size <= budget_bytes_) {
    return victims;
  }
  const std::uint64_t target = low_watermark(budget_bytes_, size);
  index_.in_eviction_order([&](const auto& entry) {
    // With one owner, this tier, nobody can become another while mutex_ is held.
    if (entry.key != key && entry.value.use_count() == 1) {
      used -= entry.bytes;
      victims.push_back(entry.key);
    }
    return used + size > target;
  });
  if (used + size > budget_bytes_) {
    return std::nullopt;
  }
  return victims;
}

Status HostTier::put(const RecordKey& key, std::shared_ptr<const Record> record,
                     std::vector<RecordKey>* evicted) {
  const std::uint64_t size = record->bytes().size();
  if (size > budget_bytes_) {
    return resource_exhausted(
        fmt::format("host tier: a record of {} bytes is larger than the budget of {} bytes", size,
                    budget_bytes_));
  }
  std::vector<RecordPtr> dropped;  // zeroed and freed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto victims = choose_victims(key, size);
  if (!victims) {
    return resource_exhausted(
        fmt::format("host tier: {} of {} bytes are in use; no room for {} more until leases are "
                    "released",
                    index_.bytes(), budget_bytes_, size));
  }
  for (const RecordKey& victim : *victims) {
    dropped.push_back(index_.evict(victim));
    evicted->push_back(victim);
    ++evictions_;
  }
  dropped.push_back(index_.remove(key));
  const double cost = recompute_tokens(record->meta(), record->n_tokens());
  index_.insert({key, size, cost, std::move(record)});
  return Status();
}

Result<std::shared_ptr<const Record>> HostTier::get(const RecordKey& key) {
  return read(key, true);
}

Result<std::shared_ptr<const Record>> HostTier::inspect(const RecordKey& key) {
  return read(key, false);
}

Result<std::shared_ptr<const Record>> HostTier::read(const RecordKey& key, bool is_use) {
  RecordPtr record;
  {
    const std::lock_guard lock(mutex_);
    const auto* entry = is_use ? index_.use(key) : index_.find(key);
    if (entry == nullptr) {
      return RecordPtr();
    }
    record = entry->value;
  }
  const Status intact = record->verify();  // without the lock: it reads the whole record
  const std::lock_guard lock(mutex_);
  if (intact.ok()) {
    hits_ += is_use ? 1 : 0;
    return record;
  }
  ++corrupt_;
  const auto* entry = index_.find(key);
  if (entry != nullptr && entry->value == record) {
    index_.remove(key);
  }
  return intact.with_context("host tier");
}

Result<std::shared_ptr<const Record>> HostTier::describe(const RecordKey& key) {
  RecordPtr record;
  {
    const std::lock_guard lock(mutex_);
    if (const auto* entry = index_.find(key); entry != nullptr) {
      record = entry->value;
    }
  }
  if (record == nullptr) {
    return RecordPtr();
  }
  return Record::describe(record->meta(), record->token_ids());
}

bool HostTier::contains(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  return index_.find(key) != nullptr;
}

Status HostTier::erase(std::span<const RecordKey> keys, std::uint64_t* removed) {
  std::vector<RecordPtr> dropped;  // zeroed and freed after the lock is released
  const std::lock_guard lock(mutex_);
  for (const RecordKey& key : keys) {
    if (RecordPtr record = index_.remove(key)) {
      dropped.push_back(std::move(record));
      ++*removed;
    }
  }
  return Status();
}

std::vector<RecordKey> HostTier::keys(std::optional<Hash128> scope) const {
  const std::lock_guard lock(mutex_);
  std::vector<RecordKey> keys;
  index_.in_eviction_order([&](const auto& entry) {
    if (!scope || entry.value->meta().scope == *scope) {
      keys.push_back(entry.key);
    }
    return true;
  });
  return keys;
}

TierStats HostTier::stats() const {
  const std::lock_guard lock(mutex_);
  TierStats stats;
  stats.name = name();
  stats.records = index_.size();
  stats.bytes = index_.bytes();
  stats.budget_bytes = budget_bytes_;
  stats.hits = hits_;
  stats.evictions = evictions_;
  stats.corrupt = corrupt_;
  return stats;
}

}  // namespace inferscale
