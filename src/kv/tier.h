#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "inferscale/status.h"

namespace inferscale {

/// One place that keeps records within a byte budget; what gives way is EvictionIndex's choice. Any
/// record may vanish at any time. Thread-safe. Knows nothing of requests, scopes that may be used,
/// or other tiers: that is the store's part. Every implementation passes
/// tests/conformance/tier_suite.h.
class Tier {
 public:
  Tier() = default;
  virtual ~Tier() = default;
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  /// "host", "disk": static storage.
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// Stores or replaces a record and appends the keys that gave way to `*evicted`. Never waits for
  /// room. Errors: kResourceExhausted (larger than the budget, or everything else is in use),
  /// kUnavailable (the medium failed or is full). An old record under the key may survive an error.
  [[nodiscard]] virtual Status put(const RecordKey& key, std::shared_ptr<const Record> record,
                                   std::vector<RecordKey>* evicted) = 0;

  /// The record, its bytes just verified, marked as used now; null when it is not here.
  /// Errors: kDataLoss (its bytes were corrupt; it is dropped and counted), kUnavailable.
  [[nodiscard]] virtual Result<std::shared_ptr<const Record>> get(const RecordKey& key) = 0;

  /// As `get`, but it does not count as use: for checking what lies here.
  [[nodiscard]] virtual Result<std::shared_ptr<const Record>> inspect(const RecordKey& key) = 0;

  /// What the record says of itself: meta and token ids are sound, keys and values are unverified
  /// or missing. Does not count as use where it reads less than `get`. Null and errors: as `get`.
  [[nodiscard]] virtual Result<std::shared_ptr<const Record>> describe(const RecordKey& key) {
    return get(key);
  }

  /// Whether `get` would find bytes (unverified). Does not count as use.
  [[nodiscard]] virtual bool contains(const RecordKey& key) const = 0;

  /// Removes records, at once for new `get`s, and zeroes their bytes (memory that is in use when it
  /// is released). Adds the number of those that were here to `*removed`.
  /// Errors: kUnavailable when bytes could not be zeroed: they are unusable, stay listed in `keys`,
  /// and a later erase tries again.
  [[nodiscard]] virtual Status erase(std::span<const RecordKey> keys, std::uint64_t* removed) = 0;

  /// Keys of all records or of those owned by `scope`, in the order in which they would give way.
  [[nodiscard]] virtual std::vector<RecordKey> keys(std::optional<Hash128> scope) const = 0;

  [[nodiscard]] virtual TierStats stats() const = 0;

  /// As KvStore::flush.
  [[nodiscard]] virtual Status flush() { return Status(); }
  /// As KvStore::compact.
  [[nodiscard]] virtual Status compact() { return Status(); }
};

}  // namespace inferscale
