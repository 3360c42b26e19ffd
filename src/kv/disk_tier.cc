#include "kv/disk_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace inferscale {

Status DiskTier::put(const RecordKey& key, std::shared_ptr<const Record> record,
                     std::vector<RecordKey>* evicted) {
  Status status = store(key, *record, evicted);
  if (log_.unsynced_bytes() >= options_.sync_bytes) {
    wake(true, false);
  }
  return status;
}

Status DiskTier::store(const RecordKey& key, const Record& record,
                       std::vector<RecordKey>* evicted) {
  const std::uint64_t size = record.bytes().size();
  // As if a segment had to be begun for it.
  const std::uint64_t need =
      segment_format::kHeaderBytes + segment_format::kEntryHeaderBytes + size;
  if (need > usable_bytes_) {
    return resource_exhausted(
        fmt::format("disk tier: a record of {} bytes is larger than the budget of {} bytes", size,
                    budget_bytes_));
  }
  for (bool may_compact = true;;) {
    {
      const std::lock_guard writing(write_mutex_);
      Status status = drop_old(key);
      bool fits = false;
      if (status.ok()) {
        const Result<bool> room = make_room(need, may_compact, evicted);
        if (room.status().code() == StatusCode::kResourceExhausted) {
          return room.status();  // everything is in use, the medium is sound
        }
        status = room.status();
        fits = room.ok() && *room;
      }
      if (fits) {
        status = check_reserve(need);
        fits = status.ok();
      }
      if (fits) {
        Result<Place> place = log_.append(key, record.bytes());
        status = place.status();
        if (place.ok()) {
          const std::lock_guard lock(mutex_);
          index_.insert({key, size, recompute_tokens(record.meta(), record.n_tokens()),
                         std::make_shared<Stored>(
                             Stored{std::move(*place), std::nullopt, record.meta().scope})});
        }
      }
      if (fits || !status.ok()) {
        const std::lock_guard lock(mutex_);
        note_outcome(status);
        return status.ok() ? Status() : unavailable("disk tier: " + status.message());
      }
    }
    Status ignored;  // logged; then more has to give way
    may_compact = compact_one(true, &ignored);
  }
}

// Records are a cache; the catalog beside them is not, and needs room even to erase something.
Status DiskTier::check_reserve(std::uint64_t need) {
  constexpr std::uint64_t kMost = 64ULL << 20;
  const auto space = files_.space(directory_);
  if (!space.ok()) {
    return Status();  // the write will tell
  }
  const std::uint64_t reserve = std::min(kMost, space->total / 8);
  if (space->free >= reserve + need) {
    return Status();
  }
  return unavailable(
      fmt::format("{} has {} bytes free, of which {} are kept for the catalog: free "
                  "space on that disk",
                  directory_.string(), space->free, reserve));
}

Status DiskTier::drop_old(const RecordKey& key) {
  StoredPtr old;
  {
    std::unique_lock lock(mutex_);
    if (const auto* entry = index_.find(key)) {
      old = entry->value;
      old->hidden = true;
      readers_gone_.wait(lock, [&] { return old->readers == 0; });
    }
  }
  if (old == nullptr) {
    return Status();
  }
  INFERSCALE_RETURN_IF_ERROR(discard(old));
  const std::lock_guard lock(mutex_);
  index_.remove(key);
  return Status();
}

Status DiskTier::discard(const StoredPtr& stored) {
  INFERSCALE_RETURN_IF_ERROR(log_.discard(stored->at));
  return stored->twin ? log_.discard(*stored->twin) : Status();
}

Result<bool> DiskTier::make_room(std::uint64_t need, bool may_compact,
                                 std::vector<RecordKey>* evicted) {
  std::uint64_t limit = usable_bytes_;
  while (true) {
    const std::uint64_t wanted = log_.occupied() + need;
    if (wanted <= limit) {
      return true;
    }
    limit = low_watermark(usable_bytes_, need);
    const bool fits = wanted <= usable_bytes_;  // the rest is for the next ones
    if (!fits && may_compact && log_.compactable(true) != nullptr) {
      return false;
    }
    RecordKey victim;
    StoredPtr stored;
    {
      const std::lock_guard lock(mutex_);
      index_.in_eviction_order([&](const auto& entry) {
        if (entry.value->readers == 0) {
          victim = entry.key;
          stored = entry.value;
        }
        return stored == nullptr;
      });
      if (fits && (stored == nullptr || !stored->at.segment->writable)) {
        return true;
      }
      if (stored == nullptr) {
        return resource_exhausted(fmt::format(
            "disk tier: no room for {} bytes while all other records are being read", need));
      }
      if (!stored->at.segment->writable) {
        return unavailable(stored->at.segment->path.string() + " cannot be written");
      }
      if (!std::exchange(stored->hidden, true)) {
        ++evictions_;
        evicted->push_back(victim);
      }
    }
    if (const Status discarded = discard(stored); !discarded.ok()) {
      return unavailable(discarded.message());  // it stays listed, and is the next to be tried
    }
    const std::lock_guard lock(mutex_);
    index_.evict(victim);
  }
}

void DiskTier::note_outcome(const Status& written) {
  if (!written.ok() && degraded_.empty()) {
    log_message(LogLevel::kWarning,
                "disk tier takes no records, memory only until it does: " + written.message());
  } else if (written.ok() && !degraded_.empty()) {
    log_message(LogLevel::kInfo, "disk tier takes records again");
  }
  degraded_ = written.message();
}

Result<std::shared_ptr<const Record>> DiskTier::get(const RecordKey& key) {
  return read_entry(key, &SegmentLog::read_record, true);
}

Result<std::shared_ptr<const Record>> DiskTier::inspect(const RecordKey& key) {
  return read_entry(key, &SegmentLog::read_record, false);
}

Result<std::shared_ptr<const Record>> DiskTier::describe(const RecordKey& key) {
  return read_entry(key, &SegmentLog::read_description, false);
}

Result<std::shared_ptr<const Record>> DiskTier::read_entry(const RecordKey& key, ReadEntry read,
                                                           bool is_use) {
  StoredPtr stored;
  Place place;
  {
    const std::lock_guard lock(mutex_);
    const auto* entry = is_use ? index_.use(key) : index_.find(key);
    if (entry == nullptr || entry->value->hidden) {
      return std::shared_ptr<const Record>();
    }
    stored = entry->value;
    place = stored->at;
    ++stored->readers;
    ++place.segment->readers;
  }
  auto record = read_held(key, stored, place, read);
  if (!record.ok()) {
    return drop_unreadable(key, stored, place, record.status());
  }
  const std::lock_guard lock(mutex_);
  hits_ += is_use ? 1 : 0;
  return record;
}

Result<std::shared_ptr<const Record>> DiskTier::read_held(const RecordKey& key,
                                                          const StoredPtr& stored,
                                                          const Place& place, ReadEntry read) {
  auto record = read(place, key);
  {
    const std::lock_guard lock(mutex_);
    --stored->readers;
    --place.segment->readers;
  }
  readers_gone_.notify_all();
  return record;
}

Result<std::shared_ptr<const Record>> DiskTier::drop_unreadable(const RecordKey& key,
                                                                const StoredPtr& stored,
                                                                const Place& place,
                                                                const Status& why) {
  const std::lock_guard writing(write_mutex_);
  {
    std::unique_lock lock(mutex_);
    const auto* entry = index_.find(key);
    if (entry == nullptr || entry->value != stored || stored->hidden) {
      return std::shared_ptr<const Record>();  // it was erased, evicted or replaced meanwhile
    }
    if (why.code() != StatusCode::kDataLoss || stored->at.offset != place.offset ||
        stored->at.segment != place.segment) {
      return unavailable("disk tier: " + why.message());  // may pass; the record may be sound
    }
    stored->hidden = true;
    ++corrupt_;
    readers_gone_.wait(lock, [&] { return stored->readers == 0; });
  }
  if (const Status discarded = discard(stored); !discarded.ok()) {
    // It stays listed, so that an erase of its owner reaches it.
    log_message(LogLevel::kWarning, "corrupt record: " + discarded.message());
  } else {
    const std::lock_guard lock(mutex_);
    index_.remove(key);
  }
  return why.with_context("disk tier");
}

bool DiskTier::contains(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto* entry = index_.find(key);
  return entry != nullptr && !entry->value->hidden;
}

std::vector<std::pair<RecordKey, DiskTier::StoredPtr>> DiskTier::hide(
    std::span<const RecordKey> keys) {
  std::vector<std::pair<RecordKey, StoredPtr>> present;
  std::unique_lock lock(mutex_);
  for (const RecordKey& key : keys) {
    if (const auto* entry = index_.find(key)) {
      entry->value->hidden = true;
      present.emplace_back(key, entry->value);
    }
  }
  for (const auto& [key, stored] : present) {
    const Stored* const waited_for = stored.get();
    readers_gone_.wait(lock, [&] { return waited_for->readers == 0; });
  }
  return present;
}

Status DiskTier::erase(std::span<const RecordKey> keys, std::uint64_t* removed) {
  const std::lock_guard writing(write_mutex_);
  std::vector<FoundEntry> found;
  Status first_error = log_.resolve_unread(&found);
  insert_found(std::move(found));
  const auto note = [&](const Status& status) {
    if (first_error.ok() && !status.ok()) {
      first_error = status;
    }
    return status.ok();
  };
  auto present = hide(keys);
  std::erase_if(present, [&](const auto& item) {
    const Stored& stored = *item.second;
    return !note(log_.zero(stored.at)) || (stored.twin && !note(log_.zero(*stored.twin)));
  });
  // Also what was evicted or replaced before: it may have been under one of these keys.
  (void)note(log_.settle());
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, stored] : present) {
      const bool gone = log_.settled(stored->at) && (!stored->twin || log_.settled(*stored->twin));
      if (gone && index_.find(key) != nullptr) {  // `keys` may name it twice
        index_.remove(key);
        ++*removed;
      }
    }
  }
  wake(false, true);
  return first_error.ok() ? Status() : unavailable("disk tier: " + first_error.message());
}

std::vector<RecordKey> DiskTier::keys(std::optional<Hash128> scope) const {
  const std::lock_guard lock(mutex_);
  std::vector<RecordKey> keys;
  index_.in_eviction_order([&](const auto& entry) {
    if (!scope || entry.value->scope == *scope) {
      keys.push_back(entry.key);
    }
    return true;
  });
  return keys;
}

Status DiskTier::flush() {
  INFERSCALE_RETURN_IF_ERROR(log_.sync().with_context("disk tier"));
  const std::lock_guard writing(write_mutex_);
  return log_.settle().with_context("disk tier");
}

TierStats DiskTier::stats() const {
  const SegmentLog::Totals totals = log_.totals();
  const std::lock_guard lock(mutex_);
  TierStats stats;
  stats.name = name();
  stats.records = index_.size();
  stats.bytes = index_.bytes();
  stats.dead_bytes = totals.occupied - std::min(totals.occupied, index_.bytes());
  stats.budget_bytes = budget_bytes_;
  stats.hits = hits_;
  stats.evictions = evictions_;
  stats.corrupt = corrupt_ + totals.damaged;
  stats.torn = totals.torn;
  stats.segments = totals.segments;
  stats.compactions = compactions_;
  stats.syncs = totals.syncs;
  stats.degraded = degraded_;
  return stats;
}

}  // namespace inferscale
