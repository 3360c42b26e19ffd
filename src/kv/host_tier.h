#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kv/eviction_index.h"
#include "kv/tier.h"

namespace inferscale {

/// Records in memory. One that anybody else holds (a lease, a caller of `get`) is never evicted:
/// that would free nothing. An erased or replaced one leaves the budget at once, its memory when
/// its last holder lets go.
class HostTier final : public Tier {
 public:
  explicit HostTier(std::uint64_t budget_bytes)
      : budget_bytes_(budget_bytes), index_(budget_bytes / 5 * 4) {}

  [[nodiscard]] std::string_view name() const override { return "host"; }
  [[nodiscard]] Status put(const RecordKey& key, std::shared_ptr<const Record> record,
                           std::vector<RecordKey>* evicted) override;
  [[nodiscard]] Result<std::shared_ptr<const Record>> get(const RecordKey& key) override;
  [[nodiscard]] Result<std::shared_ptr<const Record>> inspect(const RecordKey& key) override;
  [[nodiscard]] Result<std::shared_ptr<const Record>> describe(const RecordKey& key) override;
  [[nodiscard]] bool contains(const RecordKey& key) const override;
  [[nodiscard]] Status erase(std::span<const RecordKey> keys, std::uint64_t* removed) override;
  [[nodiscard]] std::vector<RecordKey> keys(std::optional<Hash128> scope) const override;
  [[nodiscard]] TierStats stats() const override;

 private:
  using RecordPtr = std::shared_ptr<const Record>;

  [[nodiscard]] Result<RecordPtr> read(const RecordKey& key, bool is_use);
  /// Which records go so that `size` bytes fit under `key`; nothing when not enough can go.
  [[nodiscard]] std::optional<std::vector<RecordKey>> choose_victims(const RecordKey& key,
                                                                     std::uint64_t size) const;

  const std::uint64_t budget_bytes_;
  mutable std::mutex mutex_;
  // Protected by mutex_:
  EvictionIndex<RecordPtr> index_;
  std::uint64_t hits_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t corrupt_ = 0;
};

}  // namespace inferscale
