#include "kv/device_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/transcode.h"

namespace inferscale {
namespace {

std::shared_ptr<PageTier> make_tier(std::shared_ptr<PageMemory> memory,
                                    const std::shared_ptr<DeviceClock>& clock) {
  return memory != nullptr ? PageTier::create(std::move(memory), clock) : nullptr;
}

std::vector<std::shared_ptr<PageTier>> those_of(const std::shared_ptr<PageTier>& first,
                                                const std::shared_ptr<PageTier>& second) {
  std::vector<std::shared_ptr<PageTier>> tiers;
  for (const auto& tier : {first, second}) {
    if (tier != nullptr) {
      tiers.push_back(tier);
    }
  }
  return tiers;
}

MissReason miss_of(const Status& not_put) {
  switch (not_put.code()) {
    case StatusCode::kResourceExhausted:
      return MissReason::kNoDeviceRoom;
    case StatusCode::kInvalidArgument:
      return MissReason::kWrongModel;
    default:
      return MissReason::kDeviceFailed;
  }
}

}  // namespace

bool DeviceStreams::owns(const PageLease& lease) const {
  return lease.ready() && std::any_of(tiers_.begin(), tiers_.end(),
                                      [&](const auto& tier) { return tier.get() == lease.tier(); });
}

Status DeviceStreams::publish(void* stream) {
  Status status;
  for (const auto& tier : tiers_) {
    if (Status published = tier->publish(stream); !published.ok()) {
      status = std::move(published);
    }
  }
  return status;
}

Status DeviceStreams::note_use(std::span<const PageLease* const> leases, void* stream) {
  Result<DeviceTicket> ticket = clock_->mark(stream);
  if (ticket.status().code() == StatusCode::kResourceExhausted) {
    // Very many records are on their way up. To wait for them is slow; to reuse pages that are
    // still being read would be wrong.
    for (const auto& tier : tiers_) {
      (void)tier->settle();  // a tier that fails says so itself
    }
    ticket = clock_->mark(stream);
  }
  for (const auto& tier : tiers_) {
    if (ticket.ok()) {
      tier->note_use(leases, stream, *ticket);
    } else {
      tier->fail(ticket.status());
    }
  }
  return ticket.status();
}

Result<std::unique_ptr<DeviceStore>> DeviceStore::create(std::unique_ptr<KvStore> below,
                                                         std::shared_ptr<DeviceBackend> device) {
  if (device->gpu() == nullptr && device->pinned() == nullptr) {
    return invalid_argument(
        "gpu and pinned budgets: neither holds a single page; give at least one of them more");
  }
  return std::unique_ptr<DeviceStore>(new DeviceStore(std::move(below), std::move(device)));
}

DeviceStore::DeviceStore(std::unique_ptr<KvStore> below, std::shared_ptr<DeviceBackend> device)
    : below_(std::move(below)),
      device_(std::move(device)),
      clock_(device_->clock()),
      gpu_(make_tier(device_->gpu(), clock_)),
      pinned_(make_tier(device_->pinned(), clock_)),
      tiers_(those_of(gpu_, pinned_)),
      streams_(std::make_shared<DeviceStreams>(clock_, tiers_)) {}

PageLease DeviceStore::miss(MissReason reason) {
  ++misses_by_reason_[static_cast<std::size_t>(reason)];
  return PageLease(reason);
}

std::vector<PageLease> DeviceStore::acquire_pages(std::span<const RecordRequest> requests) {
  std::vector<PageLease> leases;
  leases.reserve(requests.size());
  for (const RecordRequest& request : requests) {
    leases.push_back(acquire_one(request));
  }
  for (const TierPtr& tier : tiers_) {
    tier->tidy();
  }
  return leases;
}

// The record's own pages, where they are. A tier that failed says so only if no other has them.
PageLease DeviceStore::find(const RecordRequest& request) {
  MissReason reason = MissReason::kAbsent;
  for (const TierPtr& tier : tiers_) {
    PageLease lease = tier->acquire(request);
    if (lease.ready()) {
      return lease;
    }
    if (lease.reason() != MissReason::kAbsent) {
      reason = lease.reason();
    }
    if (reason != MissReason::kAbsent && reason != MissReason::kDeviceFailed) {
      break;
    }
  }
  return PageLease(reason);
}

PageLease DeviceStore::acquire_one(const RecordRequest& request) {
  PageLease found = find(request);
  if (found.ready()) {
    if (found.tier() == pinned_.get() && gpu_ != nullptr) {
      // Somebody else may be moving records, which is not worth waiting for.
      const std::unique_lock moving(moves_, std::try_to_lock);
      if (moving.owns_lock()) {
        move_up(found);
      }
    }
    return found;
  }
  if (found.reason() != MissReason::kAbsent && found.reason() != MissReason::kDeviceFailed) {
    return miss(found.reason());
  }
  const std::lock_guard moving(moves_);
  found = find(request);  // it may have come meanwhile
  if (found.ready()) {
    return found;
  }
  const std::vector<Lease> below = below_->acquire({&request, 1});
  if (!below.front().ready()) {
    return PageLease(below.front().reason());  // the store below has counted it
  }
  return bring_up(request, *below.front().record());
}

PageLease DeviceStore::bring_up(const RecordRequest& request, const Record& record) {
  Status status = unavailable("no tier");
  if (pinned_ != nullptr) {
    status = put_into(*pinned_, request.key, record, PageTier::Room::kEvict);
  }
  if (!status.ok() && gpu_ != nullptr && status.code() != StatusCode::kInvalidArgument) {
    const Status in_gpu = put_into(*gpu_, request.key, record, PageTier::Room::kEvict);
    // Of two errors the first says more: a full pinned tier is what a larger budget helps against.
    status = in_gpu.ok() || pinned_ == nullptr ? in_gpu : status;
  }
  if (!status.ok()) {
    return miss(miss_of(status));
  }
  ++promotions_;
  PageLease lease = find(request);
  if (!lease.ready()) {
    return miss(lease.reason());
  }
  if (lease.tier() == pinned_.get() && gpu_ != nullptr) {
    move_up(lease);
  }
  return lease;
}

// Others give way at every second use only: a pass over many records drives out nothing, and those
// that take turns in a tier too small for them are not copied each time.
void DeviceStore::move_up(const PageLease& pinned) {
  if (gpu_->contains(pinned.key()) || !pinned_->contains(pinned.key())) {
    return;  // or it was erased
  }
  std::vector<RecordKey> evicted;
  const auto room = pinned.hits() % 2 == 0 ? PageTier::Room::kEvict : PageTier::Room::kFreeOnly;
  if (gpu_->put_copy(pinned, room, &evicted).ok()) {
    ++promotions_;
  }
  note_evicted(evicted);
}

// Records of another codec are there where a data directory is used with another than before.
Status DeviceStore::put_into(PageTier& tier, const RecordKey& key, const Record& record,
                             PageTier::Room room) {
  const KvCodec codec = tier.layout().codec;
  std::shared_ptr<const Record> transcoded;
  if (record.has_payload() && record.meta().codec != codec) {
    INFERSCALE_ASSIGN_OR_RETURN(transcoded, transcode_record(record, codec));
  }
  std::vector<RecordKey> evicted;
  Status status = tier.put(key, transcoded != nullptr ? *transcoded : record, room, &evicted);
  if (&tier == gpu_.get()) {
    note_evicted(evicted);
  }
  return status;
}

// It was in use until now: the pinned copy, which nobody asked for meanwhile, must not be the next
// to go.
void DeviceStore::note_evicted(std::span<const RecordKey> from_gpu) {
  for (const RecordKey& key : from_gpu) {
    if (pinned_ != nullptr) {
      pinned_->touch(key);
    }
  }
}

Status DeviceStore::put(const RecordKey& key, std::shared_ptr<const Record> record) {
  const std::lock_guard writing(write_mutex_);
  const std::shared_ptr<const Record> kept = record;
  const Status stored = below_->put(key, std::move(record));
  if (!stored.ok() && stored.code() != StatusCode::kUnavailable) {
    return stored;
  }
  const std::lock_guard moving(moves_);
  for (const TierPtr& tier : tiers_) {
    tier->discard(key);  // what is replaced
  }
  // No failure here is one of the record: it will come up when it is used.
  const bool in_gpu =
      gpu_ != nullptr && put_into(*gpu_, key, *kept, PageTier::Room::kFreeOnly).ok();
  if (!in_gpu && pinned_ != nullptr) {
    (void)put_into(*pinned_, key, *kept, PageTier::Room::kEvict);
  }
  return stored;
}

bool DeviceStore::contains(const RecordKey& key) const {
  return below_->contains(key) ||
         std::any_of(tiers_.begin(), tiers_.end(),
                     [&](const TierPtr& tier) { return tier->contains(key); });
}

Result<std::shared_ptr<const Record>> DeviceStore::describe(const RecordKey& key) {
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const Record> found, below_->describe(key));
  return found == nullptr ? inspect(key) : found;
}

Result<std::shared_ptr<const Record>> DeviceStore::inspect(const RecordKey& key) {
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const Record> found, below_->inspect(key));
  for (const TierPtr& tier : tiers_) {
    INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const Record> paged, tier->inspect(key));
    found = found == nullptr ? std::move(paged) : std::move(found);
  }
  return found;
}

Result<EraseCounts> DeviceStore::erase(std::span<const RecordKey> keys) {
  const std::lock_guard writing(write_mutex_);
  Result<EraseCounts> below = below_->erase(keys);
  std::unique_lock moving(moves_);
  return erase_pages(keys, std::move(below), std::move(moving));
}

Result<EraseCounts> DeviceStore::erase_scope(const Hash128& scope) {
  const std::lock_guard writing(write_mutex_);
  Result<EraseCounts> below = below_->erase_scope(scope);
  std::unique_lock moving(moves_);
  return erase_pages(keys_in_pages(scope), std::move(below), std::move(moving));
}

// The store below has none of them any more. With `moving` held nothing is on its way up, and once
// all tiers have begun there is nothing it could come from.
Result<EraseCounts> DeviceStore::erase_pages(std::span<const RecordKey> keys,
                                             Result<EraseCounts> below,
                                             std::unique_lock<std::mutex> moving) {
  std::vector<PageTier::Erasing> begun;
  for (const TierPtr& tier : tiers_) {
    begun.push_back(tier->begin_erase(keys));
  }
  moving.unlock();
  EraseCounts counts = below.ok() ? *below : EraseCounts();
  Status status = below.status();
  std::vector<RecordKey> leased;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    (tiers_[i] == gpu_ ? counts.gpu : counts.pinned) += begun[i].removed;
    leased.insert(leased.end(), begun[i].leased.begin(), begun[i].leased.end());
    const Status erased = tiers_[i]->finish_erase(std::move(begun[i]));
    status = status.ok() ? erased : status;
  }
  INFERSCALE_RETURN_IF_ERROR(status);
  std::sort(leased.begin(), leased.end());
  leased.erase(std::unique(leased.begin(), leased.end()), leased.end());
  counts.leased += leased.size();
  return counts;
}

std::vector<RecordKey> DeviceStore::keys_in_pages(std::optional<Hash128> scope) const {
  std::vector<RecordKey> keys;
  for (const TierPtr& tier : tiers_) {
    const std::vector<RecordKey> in_tier = tier->keys(scope);
    keys.insert(keys.end(), in_tier.begin(), in_tier.end());
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

std::vector<RecordKey> DeviceStore::keys() const {
  std::vector<RecordKey> keys = below_->keys();
  const std::vector<RecordKey> in_pages = keys_in_pages(std::nullopt);
  keys.insert(keys.end(), in_pages.begin(), in_pages.end());
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

KvStoreStats DeviceStore::stats() const {
  KvStoreStats stats = below_->stats();
  for (auto tier = tiers_.rbegin(); tier != tiers_.rend(); ++tier) {
    stats.tiers.insert(stats.tiers.begin(), (*tier)->stats());
    stats.leases_active += (*tier)->leases_active();
  }
  stats.promotions += promotions_;
  for (std::size_t i = 0; i < std::size(misses_by_reason_); ++i) {
    stats.misses_by_reason[i] += misses_by_reason_[i];
  }
  return stats;
}

}  // namespace inferscale
