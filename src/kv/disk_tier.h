#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/eviction_index.h"
#include "kv/tier.h"

namespace inferscale {

/// Records as files, directory/<2 hex>/<32 hex key>.iskv (docs/format.md), mode 0600. Nothing is
/// synced when it is stored: a file torn by a power cut fails its checksum and is dropped, which
/// costs one encoding. One DiskTier per directory at a time; the owner of the data directory locks
/// it.
class DiskTier final : public Tier {
 public:
  /// Builds the index from file names, sizes and fixed headers; removes what a crash left behind,
  /// files that cannot be records, and the oldest files over the budget.
  /// Errors: kUnavailable (the directory cannot be created or read).
  [[nodiscard]] static Result<std::unique_ptr<DiskTier>> open(
      const std::filesystem::path& directory, std::uint64_t budget_bytes);

  [[nodiscard]] std::string_view name() const override { return "disk"; }
  [[nodiscard]] Status put(const RecordKey& key, std::shared_ptr<const Record> record,
                           std::vector<RecordKey>* evicted) override;
  [[nodiscard]] Result<std::shared_ptr<const Record>> get(const RecordKey& key) override;
  [[nodiscard]] bool contains(const RecordKey& key) const override;
  [[nodiscard]] Status erase(std::span<const RecordKey> keys, std::uint64_t* removed) override;
  [[nodiscard]] std::vector<RecordKey> keys(std::optional<Hash128> scope) const override;
  [[nodiscard]] TierStats stats() const override;

 private:
  struct File {
    Hash128 scope;
    std::uint64_t generation = 0;  ///< tells a replaced file from the one that was being read
    bool erased = false;           ///< not to be served; its bytes are yet to be zeroed
  };
  struct Found;

  DiskTier(std::filesystem::path directory, std::uint64_t budget_bytes)
      : directory_(std::move(directory)),
        budget_bytes_(budget_bytes),
        index_(budget_bytes / 5 * 4) {}

  [[nodiscard]] std::filesystem::path path_of(const RecordKey& key) const;
  [[nodiscard]] Status scan();
  void scan_bucket(const std::filesystem::path& bucket, std::vector<Found>* found);
  void adopt(const std::filesystem::path& file, std::vector<Found>* found);
  [[nodiscard]] Status make_room(const RecordKey& key, std::uint64_t size,
                                 std::vector<RecordKey>* evicted);
  [[nodiscard]] Status write(const RecordKey& key, const Record& record);
  void note_outcome(const Status& written);
  [[nodiscard]] Result<std::shared_ptr<const Record>> drop_unreadable(const RecordKey& key,
                                                                      std::uint64_t generation,
                                                                      const Status& why);

  const std::filesystem::path directory_;
  const std::uint64_t budget_bytes_;

  /// Held by whoever changes files, for as long as that takes; taken before mutex_.
  std::mutex write_mutex_;
  std::array<bool, 256> bucket_exists_{};  // protected by write_mutex_

  /// Held for moments only. Entries appear and vanish while write_mutex_ is held too.
  mutable std::mutex mutex_;
  EvictionIndex<File> index_;
  std::uint64_t next_generation_ = 1;
  std::uint64_t hits_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t corrupt_ = 0;
  std::string degraded_;  // why the last record could not be written
};

}  // namespace inferscale
