#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "inferscale/status.h"
#include "kv/eviction_index.h"
#include "kv/page_lease.h"
#include "kv/page_memory.h"

namespace inferscale {

/// Records in the pages of one memory that a device reads: a Tier whose records are leased where
/// they lie. The memory is the budget. Which records give way is EvictionIndex's choice among those
/// that nobody leases and no stream still reads. A page is zeroed before it is free, or overwritten
/// whole. Nothing waits for a device but `finish_erase`, `inspect` and the end. Thread-safe. Knows
/// nothing of other tiers.
class PageTier : public std::enable_shared_from_this<PageTier> {
 public:
  /// Whether others give way to what is put.
  enum class Room { kFreeOnly, kEvict };

  [[nodiscard]] static std::shared_ptr<PageTier> create(std::shared_ptr<PageMemory> memory,
                                                        std::shared_ptr<DeviceClock> clock);
  /// Waits until no stream reads any page.
  ~PageTier();
  PageTier(const PageTier&) = delete;
  PageTier& operator=(const PageTier&) = delete;

  [[nodiscard]] std::string_view name() const { return memory_->name(); }
  [[nodiscard]] const PageLayout& layout() const { return memory_->layout(); }

  /// A lease on the record if it is here and everything that the request says is true of it; marks
  /// it as used now. Misses: kAbsent, kDeviceFailed, and those of a request that does not match.
  /// Its bytes were verified when they came here.
  [[nodiscard]] PageLease acquire(const RecordRequest& request);

  /// Stores or replaces a record, which was just verified, and appends the keys that gave way to
  /// `*evicted`. Errors: kInvalidArgument (not of this layout), kResourceExhausted (larger than
  /// everything; or the rest is in use; or no staging memory is free), kUnavailable (the device
  /// failed). After an error no record is under the key.
  [[nodiscard]] Status put(const RecordKey& key, const Record& record, Room room,
                           std::vector<RecordKey>* evicted);
  /// The same from the pages of another tier, whose lease it is, which no longer needs to be held
  /// afterwards. REQUIRES: source.ready(); the host reads its pages; the same layout.
  [[nodiscard]] Status put_copy(const PageLease& source, Room room,
                                std::vector<RecordKey>* evicted);

  [[nodiscard]] bool contains(const RecordKey& key) const;
  /// Counts as a use, if it is here.
  void touch(const RecordKey& key);
  /// Nobody leases it from now on; its pages are zeroed once they are not in use. Does not wait.
  void discard(const RecordKey& key);
  /// What an erase takes away, between its two halves.
  struct Erasing {
    std::uint64_t removed = 0;      ///< records that were here
    std::vector<RecordKey> leased;  ///< those of them that somebody leases

   private:
    friend class PageTier;
    std::unordered_set<RecordKey> keys;
    std::vector<std::shared_ptr<PagedRecord>> unleased;
  };
  /// Nobody leases them from now on. Does not wait. `finish_erase` must follow.
  [[nodiscard]] Erasing begin_erase(std::span<const RecordKey> keys);
  /// Returns when the pages of all that nobody leases have been zeroed; waits for streams that
  /// still read them. Those of leased records are zeroed when they are released and no stream reads
  /// them. Errors: kUnavailable when bytes could not be zeroed: they are unusable, stay listed in
  /// `keys`, and a later erase tries again.
  [[nodiscard]] Status finish_erase(Erasing erasing);

  /// The record as its pages hold it, compared with the checksums it came with; null when it is not
  /// here. Waits for the device. Errors: kDataLoss (it differs; it is dropped and counted),
  /// kUnavailable.
  [[nodiscard]] Result<std::shared_ptr<const Record>> inspect(const RecordKey& key);
  /// Keys of all records or of those owned by `scope`, in the order in which they would give way.
  [[nodiscard]] std::vector<RecordKey> keys(std::optional<Hash128> scope) const;
  /// `dead_bytes`: of pages that are neither free nor hold a record that can be leased.
  [[nodiscard]] TierStats stats() const;
  [[nodiscard]] std::uint64_t leases_active() const;

  /// Work that is put into `stream` from now on sees what was written before. Errors: kUnavailable:
  /// the tier has failed.
  [[nodiscard]] Status publish(void* stream);
  /// Returns when all that was written is in its pages. Errors: as `publish`.
  [[nodiscard]] Status settle();
  /// The stream reads the pages of these leases until the ticket has passed; leases of other tiers
  /// are left alone.
  void note_use(std::span<const PageLease* const> leases, void* stream, DeviceTicket ticket);
  /// The device failed in a way that leaves in doubt what was written: no record can be leased any
  /// more.
  void fail(const Status& why);
  /// Zeroes pages of erased records that nobody uses any more, unless somebody else is at it.
  void tidy();

 private:
  friend class PageLease;
  using RecordPtr = std::shared_ptr<PagedRecord>;
  /// A page that may hold bytes of what was under `key`.
  struct Dirty {
    std::uint32_t page = 0;
    RecordKey key;
  };
  struct Taken {
    std::vector<std::uint32_t> pages;  ///< for the record
    std::vector<Dirty> left;           ///< of what gave way, not needed
  };
  using Fill = std::function<Status(std::span<const std::uint32_t> pages)>;

  PageTier(std::shared_ptr<PageMemory> memory, std::shared_ptr<DeviceClock> clock);
  [[nodiscard]] Status store(RecordPtr record, Room room, const Fill& fill,
                             std::vector<RecordKey>* evicted);
  void release(const RecordPtr& record);

  // These require write_mutex_.
  void reap();
  /// Zeroes pages and makes them free; those that cannot be zeroed are kept apart.
  [[nodiscard]] Status clean(std::span<const Dirty> dirty);
  void retry_spoiled();

  // These require mutex_.
  [[nodiscard]] bool idle(PagedRecord& record) const;
  [[nodiscard]] Status take(const RecordKey& key, std::size_t need, Room room, Taken* taken,
                            std::vector<RecordKey>* evicted);
  void doom(const RecordKey& key, RecordPtr record);
  [[nodiscard]] Status failed() const;

  const std::shared_ptr<PageMemory> memory_;
  const std::shared_ptr<DeviceClock> clock_;

  // Lock order: write_mutex_, mutex_.

  /// Held by whoever writes or zeroes pages, for as long as handing that to the device takes.
  std::mutex write_mutex_;
  std::vector<Dirty> spoiled_;  // could not be zeroed; changed with mutex_ held too
  std::atomic<std::uint64_t> doomed_count_{0};

  /// Held for moments only.
  mutable std::mutex mutex_;
  EvictionIndex<RecordPtr> index_;
  std::vector<std::uint32_t> free_;  // all zero
  std::vector<RecordPtr> doomed_;    // leased or read when they were erased or replaced
  std::uint64_t live_pages_ = 0;
  std::uint64_t leases_active_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t corrupt_ = 0;
  std::string degraded_;  // why the last record could not be written
  std::string broken_;    // why nothing can be leased any more
};

}  // namespace inferscale
