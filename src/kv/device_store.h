#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "inferscale/kv_store.h"
#include "kv/device_backend.h"
#include "kv/page_tier.h"

namespace inferscale {

/// What work of a device's streams has to do with pages; it needs no store, and outlives it.
/// Thread-safe.
class DeviceStreams {
 public:
  DeviceStreams(std::shared_ptr<DeviceClock> clock, std::vector<std::shared_ptr<PageTier>> tiers)
      : clock_(std::move(clock)), tiers_(std::move(tiers)) {}

  /// Whether the lease is one of these tiers.
  [[nodiscard]] bool owns(const PageLease& lease) const;
  /// Work that is put into `stream` from now on may read the pages of all leases given so far.
  /// Errors: kUnavailable (the device failed).
  [[nodiscard]] Status publish(void* stream);
  /// What was put into `stream` until now may read the pages of these leases; they may be released
  /// afterwards. Errors: kUnavailable (the device failed; nothing is leased any more).
  [[nodiscard]] Status note_use(std::span<const PageLease* const> leases, void* stream);

 private:
  const std::shared_ptr<DeviceClock> clock_;
  const std::vector<std::shared_ptr<PageTier>> tiers_;
};

/// A KvStore with tiers that a device reads in front of it: its own memory ("gpu") and pinned
/// memory of the host ("pinned"). Records come up by use: from the store into pinned pages, from
/// there into the device's when they are used a second time, or at once while there is room. The
/// pinned copy stays until it gives way, so that what gives way in the device's memory is usually
/// found there. Records that are put go to the store and, while there is room, into pages at once.
///
/// Never a wrong record: a lease is given after every check of KvStore::acquire, on pages that were
/// written from a record just verified. What a device fails to do costs text (kDeviceFailed), and
/// shows in `TierStats::degraded`. Thread-safe; a lease of pages waits neither for the device nor,
/// when the pages are there, for another thread's files.
class DeviceStore final : public KvStore {
 public:
  /// Errors: kInvalidArgument (the backend has no tier).
  [[nodiscard]] static Result<std::unique_ptr<DeviceStore>> create(
      std::unique_ptr<KvStore> below, std::shared_ptr<DeviceBackend> device);

  /// One lease per request, in order; a miss carries its reason: those of KvStore::acquire,
  /// kNoDeviceRoom (it is in the store, and no tier has room), kDeviceFailed. A record of another
  /// codec than the pages' is transcoded whenever it comes up; kWrongModel also for one that their
  /// codec cannot hold.
  [[nodiscard]] std::vector<PageLease> acquire_pages(std::span<const RecordRequest> requests);
  [[nodiscard]] std::shared_ptr<DeviceStreams> streams() const { return streams_; }
  [[nodiscard]] DeviceBackend& device() const { return *device_; }

  // KvStore. `acquire` and `put` speak of the store below; what is erased goes from all tiers, in
  // memory of the device before the erase returns, but for what is leased.
  [[nodiscard]] std::vector<Lease> acquire(std::span<const RecordRequest> requests) override {
    return below_->acquire(requests);
  }
  [[nodiscard]] Status put(const RecordKey& key, std::shared_ptr<const Record> record) override;
  [[nodiscard]] bool contains(const RecordKey& key) const override;
  [[nodiscard]] Result<std::shared_ptr<const Record>> inspect(const RecordKey& key) override;
  [[nodiscard]] Result<std::shared_ptr<const Record>> describe(const RecordKey& key) override;
  [[nodiscard]] Result<EraseCounts> erase(std::span<const RecordKey> keys) override;
  [[nodiscard]] Result<EraseCounts> erase_scope(const Hash128& scope) override;
  [[nodiscard]] std::vector<RecordKey> keys() const override;
  [[nodiscard]] Status flush() override { return below_->flush(); }
  [[nodiscard]] Status compact() override { return below_->compact(); }
  [[nodiscard]] KvStoreStats stats() const override;

 private:
  using TierPtr = std::shared_ptr<PageTier>;

  DeviceStore(std::unique_ptr<KvStore> below, std::shared_ptr<DeviceBackend> device);
  [[nodiscard]] PageLease acquire_one(const RecordRequest& request);
  [[nodiscard]] PageLease find(const RecordRequest& request);
  [[nodiscard]] PageLease miss(MissReason reason);
  [[nodiscard]] Result<EraseCounts> erase_pages(std::span<const RecordKey> keys,
                                                Result<EraseCounts> below,
                                                std::unique_lock<std::mutex> moving);
  [[nodiscard]] std::vector<RecordKey> keys_in_pages(std::optional<Hash128> scope) const;

  // These require moves_.
  [[nodiscard]] PageLease bring_up(const RecordRequest& request, const Record& record);
  void move_up(const PageLease& pinned);
  [[nodiscard]] Status put_into(PageTier& tier, const RecordKey& key, const Record& record,
                                PageTier::Room room);
  void note_evicted(std::span<const RecordKey> from_gpu);

  const std::unique_ptr<KvStore> below_;
  const std::shared_ptr<DeviceBackend> device_;
  const std::shared_ptr<DeviceClock> clock_;
  const TierPtr gpu_;                 // may be null, but not both
  const TierPtr pinned_;              // may be null
  const std::vector<TierPtr> tiers_;  // those that there are, the fastest first
  const std::shared_ptr<DeviceStreams> streams_;

  // Lock order: write_mutex_, moves_, those of the store below and of the tiers.

  /// Held during a whole put or erase, so that none sees half of another.
  std::mutex write_mutex_;
  /// Held while a record is put into pages. An erase takes it, once the store below has none of its
  /// keys any more, until none of the tiers leases them.
  std::mutex moves_;
  std::atomic<std::uint64_t> promotions_{0};
  std::atomic<std::uint64_t> misses_by_reason_[16] = {};
};

}  // namespace inferscale
