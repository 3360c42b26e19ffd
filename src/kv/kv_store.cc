#include "inferscale/kv_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "kv/bounded_key_set.h"
#include "kv/disk_tier.h"
#include "kv/host_tier.h"
#include "kv/lease_table.h"
#include "kv/load_rate.h"
#include "kv/record_check.h"
#include "kv/tier.h"

namespace inferscale {
namespace {

/// How many records that the disk refused are written with each one that it takes again.
constexpr std::size_t kWrittenLaterPerPut = 8;

/// How many erased and how many evicted keys are remembered, only to give a miss its right reason.
constexpr std::size_t kRememberedKeys = 1U << 16;

using RecordPtr = std::shared_ptr<const Record>;

class TieredKvStore final : public KvStore {
 public:
  /// Without `host_keeps` (a budget of 0) the host tier takes nothing, and leases alone keep what
  /// was loaded from disk.
  TieredKvStore(std::unique_ptr<Tier> host, bool host_keeps, std::unique_ptr<Tier> disk)
      : host_(std::move(host)), disk_(std::move(disk)), host_keeps_(host_keeps) {}

  std::vector<Lease> acquire(std::span<const RecordRequest> requests) override;
  Status put(const RecordKey& key, RecordPtr record) override;
  bool contains(const RecordKey& key) const override;
  Result<RecordPtr> inspect(const RecordKey& key) override;
  Result<RecordPtr> describe(const RecordKey& key) override;
  Result<EraseCounts> erase(std::span<const RecordKey> keys) override;
  Result<EraseCounts> erase_scope(const Hash128& scope) override;
  std::vector<RecordKey> keys() const override;
  Status flush() override { return disk_ != nullptr ? disk_->flush() : Status(); }
  Status compact() override { return disk_ != nullptr ? disk_->compact() : Status(); }
  KvStoreStats stats() const override;

 private:
  struct Found {
    RecordPtr record;
    bool in_host = false;
    bool corrupt = false;  ///< some tier had bytes that did not match their checksums
  };

  Lease acquire_one(const RecordRequest& request);
  bool load_is_slow(const RecordRequest& request);
  Found find(const RecordKey& key);
  Found find_in(Tier& tier, const RecordKey& key);
  Lease grant(const RecordKey& key, const Found& found);
  Result<EraseCounts> erase_keys(std::span<const RecordKey> keys);
  std::vector<RecordKey> keys_in_tiers(std::optional<Hash128> scope) const;
  void write_later();  // requires write_mutex_

  // These require mutex_.
  Lease miss(MissReason reason);
  MissReason reason_for_absence(const RecordKey& key) const;
  bool stored(const RecordKey& key) const;
  Status put_host(const RecordKey& key, RecordPtr record);
  void remember_evicted(std::span<const RecordKey> keys);

  // Constant after construction; the tiers synchronise themselves. disk_ may be null.
  const std::unique_ptr<Tier> host_;
  const std::unique_ptr<Tier> disk_;
  const bool host_keeps_;
  LoadRate disk_rate_;
  const std::shared_ptr<LeaseTable> leases_ = std::make_shared<LeaseTable>();

  // Lock order: write_mutex_, mutex_, those of the tiers.

  /// Held during a whole put or erase, disk included, so that none sees half of another.
  std::mutex write_mutex_;
  BoundedKeySet unwritten_{kRememberedKeys};  // in the host tier alone: the disk refused them

  /// Held for moments, never while reading or writing files. A lease is given and a record moves
  /// up to the host tier only while it is held, which is what erase relies on.
  mutable std::mutex mutex_;
  std::unordered_set<RecordKey> erasing_;  // an erase of these has begun and not ended
  BoundedKeySet erased_{kRememberedKeys};
  BoundedKeySet evicted_{kRememberedKeys};
  std::uint64_t puts_ = 0;
  std::uint64_t promotions_ = 0;
  std::uint64_t written_later_ = 0;
  decltype(KvStoreStats::misses_by_reason) misses_by_reason_ = {};
};

std::vector<Lease> TieredKvStore::acquire(std::span<const RecordRequest> requests) {
  std::vector<Lease> leases;
  leases.reserve(requests.size());
  for (const RecordRequest& request : requests) {
    leases.push_back(acquire_one(request));
  }
  return leases;
}

Lease TieredKvStore::acquire_one(const RecordRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    if (erasing_.contains(request.key)) {
      return miss(MissReason::kErased);
    }
  }
  if (load_is_slow(request)) {
    const std::lock_guard lock(mutex_);
    return miss(MissReason::kSlowLoad);
  }
  const Found found = find(request.key);
  if (found.record == nullptr) {
    const std::lock_guard lock(mutex_);
    return miss(found.corrupt ? MissReason::kChecksum : reason_for_absence(request.key));
  }
  const MissReason reason = mismatch(request, found.record->meta(), found.record->token_ids());
  if (reason != MissReason::kNone) {
    const std::lock_guard lock(mutex_);
    return miss(reason);
  }
  return grant(request.key, found);
}

bool TieredKvStore::load_is_slow(const RecordRequest& request) {
  return disk_ != nullptr && !host_->contains(request.key) && disk_->contains(request.key) &&
         disk_rate_.slower_than(kv_elements(request.shape, request.token_ids.size()),
                                request.prefill_us);
}

TieredKvStore::Found TieredKvStore::find(const RecordKey& key) {
  Found in_host = find_in(*host_, key);
  if (in_host.record != nullptr || disk_ == nullptr) {
    in_host.in_host = in_host.record != nullptr;
    return in_host;
  }
  const Stopwatch watch;
  Found on_disk = find_in(*disk_, key);
  if (on_disk.record != nullptr) {
    disk_rate_.note(kv_elements(on_disk.record->meta().shape, on_disk.record->n_tokens()),
                    watch.elapsed_ms() / 1e3);
  }
  on_disk.corrupt |= in_host.corrupt;
  return on_disk;
}

TieredKvStore::Found TieredKvStore::find_in(Tier& tier, const RecordKey& key) {
  Found found;
  Result<RecordPtr> record = tier.get(key);
  if (record.ok()) {
    found.record = std::move(*record);
    return found;
  }
  found.corrupt = record.status().code() == StatusCode::kDataLoss;
  log_message(found.corrupt ? LogLevel::kWarning : LogLevel::kDebug,
              fmt::format("record {}: {}", key.value.to_hex(), record.status().message()));
  return found;
}

Lease TieredKvStore::grant(const RecordKey& key, const Found& found) {
  const std::lock_guard lock(mutex_);
  // The bytes were read without the lock. An erase that began since then must win: were it missed
  // here, this would lease, or bring back, what has been reported as gone.
  if (!stored(key)) {
    return miss(reason_for_absence(key));
  }
  if (!found.in_host && !host_->contains(key) && host_keeps_) {
    if (!put_host(key, found.record).ok()) {
      return miss(MissReason::kNoRoom);
    }
    ++promotions_;
  }
  return leases_->grant(key, found.record);
}

Status TieredKvStore::put(const RecordKey& key, RecordPtr record) {
  if (record == nullptr) {
    return invalid_argument("record: null");
  }
  if (!record->has_payload()) {
    return invalid_argument("record: a description; its keys and values are elsewhere");
  }
  const std::lock_guard writing(write_mutex_);
  Status in_host;
  {
    const std::lock_guard lock(mutex_);
    erased_.erase(key);
    evicted_.erase(key);
    in_host = put_host(key, record);
  }
  std::vector<RecordKey> evicted;
  const Status on_disk = disk_ != nullptr ? disk_->put(key, std::move(record), &evicted)
                                          : resource_exhausted("the disk tier is off");
  if (on_disk.ok()) {
    unwritten_.erase(key);
    write_later();
  } else if (in_host.ok() && on_disk.code() == StatusCode::kUnavailable) {
    unwritten_.insert(key);
  }
  const std::lock_guard lock(mutex_);
  remember_evicted(evicted);
  if (!in_host.ok() && !on_disk.ok()) {
    return resource_exhausted(
        fmt::format("not stored: {}; {}", in_host.message(), on_disk.message()));
  }
  ++puts_;
  return on_disk.code() == StatusCode::kUnavailable ? on_disk : Status();
}

// The disk takes records again: what it refused goes there now, before the host tier evicts it.
void TieredKvStore::write_later() {
  for (std::size_t i = 0; i < kWrittenLaterPerPut; ++i) {
    const std::optional<RecordKey> key = unwritten_.take_oldest();
    if (!key) {
      return;
    }
    const Found found = find_in(*host_, *key);
    if (found.record == nullptr) {
      continue;  // evicted, erased or damaged meanwhile
    }
    std::vector<RecordKey> evicted;
    const Status written = disk_->put(*key, found.record, &evicted);
    const std::lock_guard lock(mutex_);
    remember_evicted(evicted);
    if (!written.ok()) {
      unwritten_.insert(*key);
      return;
    }
    ++written_later_;
  }
}

bool TieredKvStore::contains(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  return stored(key);
}

Result<RecordPtr> TieredKvStore::inspect(const RecordKey& key) {
  RecordPtr found;
  for (Tier* tier : {host_.get(), disk_.get()}) {
    if (tier == nullptr || !tier->contains(key)) {
      continue;
    }
    INFERSCALE_ASSIGN_OR_RETURN(RecordPtr record, tier->inspect(key));
    found = record != nullptr ? std::move(record) : std::move(found);
  }
  return found;
}

Result<RecordPtr> TieredKvStore::describe(const RecordKey& key) {
  Result<RecordPtr> in_host = host_->describe(key);
  const bool answered = !in_host.ok() || *in_host != nullptr;
  return answered || disk_ == nullptr ? std::move(in_host) : disk_->describe(key);
}

Result<EraseCounts> TieredKvStore::erase(std::span<const RecordKey> keys) {
  const std::lock_guard writing(write_mutex_);
  return erase_keys(keys);
}

Result<EraseCounts> TieredKvStore::erase_scope(const Hash128& scope) {
  // No put can add to the scope meanwhile; what moves up to the host tier is on disk as well.
  const std::lock_guard writing(write_mutex_);
  return erase_keys(keys_in_tiers(scope));
}

std::vector<RecordKey> TieredKvStore::keys_in_tiers(std::optional<Hash128> scope) const {
  std::vector<RecordKey> keys = host_->keys(scope);
  if (disk_ != nullptr) {
    const std::vector<RecordKey> on_disk = disk_->keys(scope);
    keys.insert(keys.end(), on_disk.begin(), on_disk.end());
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

std::vector<RecordKey> TieredKvStore::keys() const {
  std::vector<RecordKey> keys = keys_in_tiers(std::nullopt);
  const std::lock_guard lock(mutex_);
  std::erase_if(keys, [&](const RecordKey& key) { return !stored(key); });  // being erased
  return keys;
}

Result<EraseCounts> TieredKvStore::erase_keys(std::span<const RecordKey> keys) {
  EraseCounts counts;
  {
    const std::lock_guard lock(mutex_);
    for (const RecordKey& key : keys) {
      const bool first = erasing_.insert(key).second;
      erased_.insert(key);
      counts.leased += first && leases_->leased(key) ? 1 : 0;
    }
    (void)host_->erase(keys, &counts.host);  // cannot fail
  }
  const Status on_disk = disk_ != nullptr ? disk_->erase(keys, &counts.disk) : Status();
  const std::lock_guard lock(mutex_);
  erasing_.clear();
  if (!on_disk.ok()) {
    return on_disk;
  }
  return counts;
}

KvStoreStats TieredKvStore::stats() const {
  KvStoreStats stats;
  stats.tiers.push_back(host_->stats());
  if (disk_ != nullptr) {
    stats.tiers.push_back(disk_->stats());
  }
  stats.leases_active = leases_->active();
  const std::lock_guard lock(mutex_);
  stats.puts = puts_;
  stats.promotions = promotions_;
  stats.written_later = written_later_;
  std::copy(std::begin(misses_by_reason_), std::end(misses_by_reason_),
            std::begin(stats.misses_by_reason));
  return stats;
}

Lease TieredKvStore::miss(MissReason reason) {
  ++misses_by_reason_[static_cast<std::size_t>(reason)];
  return Lease(reason);
}

MissReason TieredKvStore::reason_for_absence(const RecordKey& key) const {
  if (erasing_.contains(key) || erased_.contains(key)) {
    return MissReason::kErased;
  }
  return evicted_.contains(key) ? MissReason::kEvicted : MissReason::kAbsent;
}

bool TieredKvStore::stored(const RecordKey& key) const {
  return !erasing_.contains(key) &&
         (host_->contains(key) || (disk_ != nullptr && disk_->contains(key)));
}

Status TieredKvStore::put_host(const RecordKey& key, RecordPtr record) {
  std::vector<RecordKey> evicted;
  Status status = host_->put(key, std::move(record), &evicted);
  remember_evicted(evicted);
  return status;
}

void TieredKvStore::remember_evicted(std::span<const RecordKey> keys) {
  for (const RecordKey& key : keys) {
    evicted_.insert(key);
  }
}

}  // namespace

Result<std::unique_ptr<KvStore>> KvStore::open(const KvStoreOptions& options) {
  const bool with_disk = !options.directory.empty() && options.disk_budget_bytes > 0;
  if (options.host_budget_bytes == 0 && !with_disk) {
    return invalid_argument(
        "host_budget_bytes: 0 needs a disk tier (a directory and a disk budget above 0)");
  }
  std::unique_ptr<Tier> disk;
  if (with_disk) {
    DiskTier::Options disk_options;
    disk_options.files = options.file_system;
    disk_options.background = options.background;
    INFERSCALE_ASSIGN_OR_RETURN(
        disk, DiskTier::open(options.directory, options.disk_budget_bytes, disk_options));
  }
  return std::unique_ptr<KvStore>(
      std::make_unique<TieredKvStore>(std::make_unique<HostTier>(options.host_budget_bytes),
                                      options.host_budget_bytes > 0, std::move(disk)));
}

}  // namespace inferscale
