#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inferscale/export.h"
#include "inferscale/kv_record.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// Why a record was not leased: each is counted, and the tokens are prefilled from text.
/// Names (`miss_reason_name`) appear in replies as `fallbacks[].reason`.
enum class MissReason : std::uint8_t {
  kNone = 0,
  kAbsent,        ///< never stored, or its encoding is not finished ("record_missing")
  kEvicted,       ///< was stored, gave way to a budget ("record_evicted")
  kErased,        ///< erased or replaced meanwhile ("record_erased")
  kChecksum,      ///< bytes do not match their checksum ("bad_checksum")
  kWrongModel,    ///< fingerprint, shape or codec of another model ("wrong_fingerprint")
  kWrongScope,    ///< belongs to a scope the request may not use ("wrong_scope")
  kWrongTokens,   ///< token ids differ ("wrong_tokens")
  kWrongContext,  ///< encode context not allowed or not the expected one ("wrong_context")
  kNoRoom,        ///< on disk, and the host budget is full of leased records ("host_budget_full")
  kSlowLoad,      ///< loading it would take longer than prefilling its tokens
                  ///< ("load_slower_than_prefill")
  kNoDeviceRoom,  ///< stored, and what a device reads is full of records in use
                  ///< ("device_budget_full")
  kDeviceFailed,  ///< stored, and the device's memory failed ("device_failed")
};
[[nodiscard]] INFERSCALE_API const char* miss_reason_name(MissReason reason);

/// What a request expects of a record. Every field is checked before a lease is given.
struct RecordRequest {
  RecordKey key;
  Hash128 model_fingerprint;
  KvShape shape;
  Hash128 scope;  ///< scope_hash of the record's owner, which the caller may use
  std::span<const TokenId> token_ids;  ///< compared id by id; borrowed for the call
  Hash128 context_id;                  ///< what the catalog says the record was encoded behind
  /// Whether `context_id` is not compared: for a caller who has checked by other means that what
  /// the record was encoded behind is allowed.
  bool any_context = false;
  /// What prefilling its tokens would take, in microseconds; 0: unknown, the record is loaded
  /// whatever that takes.
  double prefill_us = 0;
};

/// Keeps a record usable: it cannot be evicted or wiped while leased. Movable, releases on
/// destruction. Not thread-safe itself; different leases may be used from different threads. May
/// outlive the store.
class INFERSCALE_API Lease {
 public:
  Lease() = default;
  explicit Lease(MissReason reason) : reason_(reason) {}
  /// `record` shares ownership with the pin that keeps it from being evicted.
  explicit Lease(std::shared_ptr<const Record> record) : record_(std::move(record)) {}
  [[nodiscard]] bool ready() const { return record_ != nullptr; }
  [[nodiscard]] MissReason reason() const { return reason_; }
  /// Null unless ready().
  [[nodiscard]] const Record* record() const { return record_.get(); }

 private:
  std::shared_ptr<const Record> record_;
  MissReason reason_ = MissReason::kNone;
};

struct TierStats {
  std::string name;  ///< "gpu", "pinned", "host", "disk"
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint64_t budget_bytes = 0;
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;
  std::uint64_t corrupt = 0;     ///< records dropped because a check failed
  std::uint64_t dead_bytes = 0;  ///< that files occupy beyond `bytes`: headers, and what is left of
                                 ///< records that were erased, evicted or replaced
  std::uint64_t segments = 0;    ///< files
  std::uint64_t torn = 0;        ///< ends of files that a crash had left half written, cut off
  std::uint64_t compactions = 0;
  std::uint64_t syncs = 0;
  std::string degraded;  ///< why the tier takes no new records; empty while it does
};
struct KvStoreStats {
  std::vector<TierStats> tiers;
  std::uint64_t puts = 0;
  std::uint64_t promotions = 0;     ///< records brought up to the host tier
  std::uint64_t written_later = 0;  ///< records that the disk refused at first and took since
  std::uint64_t leases_active = 0;
  std::uint64_t misses_by_reason[16] = {};  ///< indexed by MissReason
};

/// How many records and bytes an erase removed, by tier; part of a delete receipt.
struct EraseCounts {
  std::uint64_t host = 0;
  std::uint64_t disk = 0;
  std::uint64_t leased =
      0;                  ///< of these, how many were in use: unusable at once, wiped when released
  std::uint64_t gpu = 0;  ///< in the memory of an engine's device
  std::uint64_t pinned = 0;  ///< in memory of the host that the device reads
  /// Why an engine that keeps records could not be asked to erase them; empty when it did, or when
  /// none keeps any. They are unusable all the same (`OwnerEpoch::epoch`).
  std::string unreached;
};

/// Whose records an erase takes, for stores whose records an engine keeps (docs/vllm.md).
struct OwnerEpoch {
  std::string tenant;
  std::string user;
  /// After the erase: an engine serves nobody who names a lower one, and drops what it has of a
  /// lower one before it serves a higher one.
  std::uint64_t epoch = 0;
};

class FileSystem;

struct KvStoreOptions {
  std::uint64_t host_budget_bytes = 1ULL << 30;  ///< raise it when `stats` shows evictions
  std::uint64_t disk_budget_bytes = 8ULL << 30;  ///< 0 switches the disk tier off
  std::filesystem::path directory;               ///< of the disk tier; empty switches it off
  /// For tests: what the disk tier uses instead of the operating system's files. Must outlive the
  /// store.
  FileSystem* file_system = nullptr;
  /// Whether a thread of the disk tier syncs and compacts; tests that count its steps do without.
  bool background = true;
};

/// Records by key over the tiers. The catalog is the truth, this is a cache: any record may vanish
/// at any time. Thread-safe. Never blocks on a full pool: it returns what it has.
class INFERSCALE_API KvStore {
 public:
  /// Errors: kInvalidArgument (options), kUnavailable (directory cannot be read or created).
  [[nodiscard]] static Result<std::unique_ptr<KvStore>> open(const KvStoreOptions& options);
  virtual ~KvStore() = default;

  /// One lease per request, in order; a miss carries its reason. Promotes records to the host tier,
  /// whose budget leases never exceed (but where it is 0: then leases alone keep their records).
  /// Bytes are verified against their checksums before they are leased.
  [[nodiscard]] virtual std::vector<Lease> acquire(std::span<const RecordRequest> requests) = 0;
  /// Stores (or replaces) a record in every tier that has room. Errors: kResourceExhausted (no tier
  /// has room, or the disk failed and the host tier has none: nothing stored), kUnavailable (disk
  /// failed or full; the record is kept in the host tier and usable; `TierStats::degraded` says
  /// why).
  [[nodiscard]] virtual Status put(const RecordKey& key, std::shared_ptr<const Record> record) = 0;
  /// Whether `acquire` would find bytes under this key (unverified). The only answer to "is it
  /// ready?".
  [[nodiscard]] virtual bool contains(const RecordKey& key) const = 0;
  /// The record under this key, every copy of it just verified; null when no tier has it. Neither
  /// moves it up nor counts a miss: for checking a store. Errors: kDataLoss (a copy was damaged and
  /// is dropped), kUnavailable.
  [[nodiscard]] virtual Result<std::shared_ptr<const Record>> inspect(const RecordKey& key) = 0;
  /// What the record under this key says of itself, without its keys and values: meta and token ids
  /// are verified, nothing else is read. For listing a store. Null and errors: as `inspect`.
  [[nodiscard]] virtual Result<std::shared_ptr<const Record>> describe(const RecordKey& key) {
    return inspect(key);
  }
  /// Removes records: at once for new leases; memory and files are zeroed (leased memory when
  /// released). Errors: kUnavailable when a file could not be wiped (the record is unusable all the
  /// same).
  [[nodiscard]] virtual Result<EraseCounts> erase(std::span<const RecordKey> keys) = 0;
  /// The same for records of one owner. What a store keeps itself goes as with `erase`; an engine
  /// that keeps records is told the owner's epoch too, also when there are no keys.
  [[nodiscard]] virtual Result<EraseCounts> erase_owned(const OwnerEpoch& owner,
                                                        std::span<const RecordKey> keys) {
    (void)owner;
    return erase(keys);
  }
  /// Whether a record is found under any of these keys.
  [[nodiscard]] virtual bool contains_any(std::span<const RecordKey> keys) const {
    for (const RecordKey& key : keys) {
      if (contains(key)) {
        return true;
      }
    }
    return false;
  }
  /// Removes every record whose owner is `scope` exactly.
  [[nodiscard]] virtual Result<EraseCounts> erase_scope(const Hash128& scope) = 0;
  /// Keys of all records in any tier, in no order.
  [[nodiscard]] virtual std::vector<RecordKey> keys() const = 0;
  /// Returns when everything that was stored would survive a power cut. Nobody needs to wait for
  /// that, since any record may vanish. Errors: kUnavailable.
  [[nodiscard]] virtual Status flush() = 0;
  /// Reclaims the space of dead records now, as the background does when much of a file is dead.
  /// Errors: kUnavailable, kResourceExhausted (no space for the copies); nothing is lost.
  [[nodiscard]] virtual Status compact() = 0;
  [[nodiscard]] virtual KvStoreStats stats() const = 0;
};

}  // namespace inferscale
