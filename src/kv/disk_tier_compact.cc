// DiskTier: compaction, and the thread that syncs and compacts in the background.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "kv/disk_tier.h"

namespace inferscale {

Status DiskTier::compact() {
  {
    const std::lock_guard writing(write_mutex_);
    log_.seal();
  }
  Status status;
  while (status.ok() && compact_one(false, &status)) {
  }
  return status.with_context("disk tier: compaction");
}

bool DiskTier::compact_one(bool for_space, Status* status) {
  const std::lock_guard compacting(compaction_mutex_);
  std::shared_ptr<Segment> segment;
  {
    const std::lock_guard writing(write_mutex_);
    segment = log_.compactable(for_space);
  }
  if (segment == nullptr) {
    return false;
  }
  *status = compact_segment(segment);
  if (status->ok() && log_.find(segment->number) == segment) {
    *status = unavailable(segment->path.string() + ": cannot be emptied now");
  }
  if (!status->ok()) {
    log_message(LogLevel::kWarning, "disk tier: compaction: " + status->message());
  }
  return status->ok();
}

/// Copies what is live, syncs the copies, lets the index point to them, and only then wipes and
/// removes the old file: at every moment each live record can be found, and an erase reaches both
/// copies (`Stored::twin`). Readers, puts and erases go on; each waits for one record at most.
Status DiskTier::compact_segment(const std::shared_ptr<Segment>& segment) {
  std::vector<std::pair<RecordKey, StoredPtr>> moved;
  {
    const std::lock_guard lock(mutex_);
    index_.in_eviction_order([&](const auto& entry) {
      const Stored& stored = *entry.value;
      if (stored.at.segment == segment || (stored.twin && stored.twin->segment == segment)) {
        moved.emplace_back(entry.key, entry.value);
      }
      return true;
    });
  }
  for (const auto& [key, stored] : moved) {
    if (const Status status = copy_record(key, stored); !status.ok()) {
      drop_copies(moved);
      return status;
    }
  }
  if (const Status status = log_.sync(); !status.ok()) {
    drop_copies(moved);
    return status;
  }
  return switch_over(segment, moved);
}

Status DiskTier::copy_record(const RecordKey& key, const StoredPtr& stored) {
  Place place;
  {
    const std::lock_guard lock(mutex_);
    if (stored->hidden || (stored->twin && !stored->twin_spoiled)) {
      return Status();  // gone meanwhile, or copied by an attempt before
    }
    place = stored->at;
    ++stored->readers;
    ++place.segment->readers;
  }
  auto record = read_held(key, stored, place, &SegmentLog::read_record);
  if (!record.ok()) {
    const auto dropped = drop_unreadable(key, stored, place, record.status());
    return record.status().code() == StatusCode::kDataLoss ? Status() : dropped.status();
  }
  const std::lock_guard writing(write_mutex_);
  const auto is_wanted = [&] {
    const std::lock_guard lock(mutex_);
    const auto* entry = index_.find(key);
    return entry != nullptr && entry->value == stored && !stored->hidden;
  };
  if (!is_wanted()) {
    return Status();
  }
  if (stored->twin) {
    INFERSCALE_RETURN_IF_ERROR(log_.discard(*stored->twin));
    const std::lock_guard lock(mutex_);
    stored->twin.reset();
    stored->twin_spoiled = false;
  }
  INFERSCALE_ASSIGN_OR_RETURN(Place copy, log_.append(key, (*record)->bytes()));
  const std::lock_guard lock(mutex_);
  stored->twin = std::move(copy);
  return Status();
}

void DiskTier::drop_copies(std::span<const std::pair<RecordKey, StoredPtr>> moved) {
  const std::lock_guard writing(write_mutex_);
  for (const auto& [key, stored] : moved) {
    if (stored->hidden || !stored->twin) {
      continue;
    }
    // A copy that stays, perhaps half wiped, goes with its record, at the next attempt, or at the
    // next start.
    const bool dropped = log_.discard(*stored->twin).ok();
    const std::lock_guard lock(mutex_);
    stored->twin_spoiled = !dropped;
    if (dropped) {
      stored->twin.reset();
    }
  }
}

Status DiskTier::switch_over(const std::shared_ptr<Segment>& segment,
                             std::span<const std::pair<RecordKey, StoredPtr>> moved) {
  const std::lock_guard writing(write_mutex_);
  {
    std::unique_lock lock(mutex_);
    for (const auto& [key, stored] : moved) {
      if (!stored->hidden && stored->twin && !stored->twin_spoiled &&
          stored->at.segment == segment) {
        std::swap(stored->at, *stored->twin);
      }
    }
    readers_gone_.wait(lock, [&] { return segment->readers == 0; });
  }
  for (const auto& [key, stored] : moved) {
    if (stored->hidden || !stored->twin || stored->twin->segment != segment) {
      continue;
    }
    INFERSCALE_RETURN_IF_ERROR(log_.zero(*stored->twin));
  }
  INFERSCALE_RETURN_IF_ERROR(log_.settle());  // removes the file
  const std::lock_guard lock(mutex_);
  for (const auto& [key, stored] : moved) {
    if (stored->twin && stored->twin->segment == segment) {
      stored->twin.reset();
    }
  }
  ++compactions_;
  return Status();
}

void DiskTier::wake(bool sync, bool compact) {
  {
    const std::lock_guard lock(background_mutex_);
    sync_due_ |= sync;
    compact_due_ |= compact;
  }
  background_wakes_.notify_all();
}

void DiskTier::run_background() {
  std::unique_lock lock(background_mutex_);
  while (!stop_) {
    const bool woken = background_wakes_.wait_for(
        lock, options_.sync_interval, [&] { return stop_ || sync_due_ || compact_due_; });
    if (stop_) {
      return;  // the destructor syncs
    }
    const bool sync = std::exchange(sync_due_, false) || !woken;
    const bool compact = std::exchange(compact_due_, false) || !woken;
    lock.unlock();
    if (sync && log_.unsynced_bytes() > 0) {
      if (const Status status = flush(); !status.ok()) {
        log_message(LogLevel::kWarning, status.message());
      }
    }
    bool stopping = false;
    Status ignored;  // logged; the next reason to compact tries again
    while (compact && !stopping && compact_one(false, &ignored)) {
      const std::lock_guard check(background_mutex_);
      stopping = stop_;
    }
    lock.lock();
  }
}

}  // namespace inferscale
