#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/file_system.h"
#include "kv/eviction_index.h"
#include "kv/index_file.h"
#include "kv/segment_log.h"
#include "kv/tier.h"

namespace inferscale {

/// Records as entries of append-only segments (docs/format.md), files of mode 0600. Nothing is
/// synced when it is stored, but in groups by a background thread: a record torn by a power cut
/// fails its checksums and is dropped, which costs one encoding. The budget counts what the files
/// occupy, a share of it kept free for compaction. One DiskTier per directory at a time; the owner
/// of the data directory locks it.
class DiskTier final : public Tier {
 public:
  struct Options {
    FileSystem* files = nullptr;      ///< null: the operating system's
    std::uint64_t segment_bytes = 0;  ///< 0: chosen by the budget
    /// Groups of appended records are synced when they have so many bytes or are so old.
    std::uint64_t sync_bytes = 64U << 20;
    std::chrono::milliseconds sync_interval{5000};
    bool background = true;  ///< a thread that syncs and compacts
  };

  /// Finds the records, by the index file that a clean end left or by reading headers; drops what
  /// is damaged, and the least recently used over the budget. Errors: kUnavailable (the directory
  /// cannot be created or read).
  [[nodiscard]] static Result<std::unique_ptr<DiskTier>> open(
      const std::filesystem::path& directory, std::uint64_t budget_bytes, const Options& options);
  [[nodiscard]] static Result<std::unique_ptr<DiskTier>> open(
      const std::filesystem::path& directory, std::uint64_t budget_bytes) {
    return open(directory, budget_bytes, Options());
  }
  /// Syncs and leaves the index file.
  ~DiskTier() override;

  [[nodiscard]] std::string_view name() const override { return "disk"; }
  [[nodiscard]] Status put(const RecordKey& key, std::shared_ptr<const Record> record,
                           std::vector<RecordKey>* evicted) override;
  [[nodiscard]] Result<std::shared_ptr<const Record>> get(const RecordKey& key) override;
  [[nodiscard]] Result<std::shared_ptr<const Record>> inspect(const RecordKey& key) override;
  [[nodiscard]] Result<std::shared_ptr<const Record>> describe(const RecordKey& key) override;
  [[nodiscard]] bool contains(const RecordKey& key) const override;
  [[nodiscard]] Status erase(std::span<const RecordKey> keys, std::uint64_t* removed) override;
  [[nodiscard]] std::vector<RecordKey> keys(std::optional<Hash128> scope) const override;
  [[nodiscard]] TierStats stats() const override;
  [[nodiscard]] Status flush() override;
  [[nodiscard]] Status compact() override;

 private:
  struct Stored {
    Place at;
    /// While compaction moves the record: where its other copy is. Every way to take the record
    /// away takes both away.
    std::optional<Place> twin;
    Hash128 scope;
    std::uint32_t readers = 0;  ///< bytes are zeroed only when there are none
    bool hidden = false;        ///< not to be served; its bytes are yet to be zeroed
    bool twin_spoiled = false;  ///< the twin is a copy whose taking back failed half way
  };
  using StoredPtr = std::shared_ptr<Stored>;

  DiskTier(std::filesystem::path directory, std::uint64_t budget_bytes, const Options& options);

  // Opening (disk_tier_open.cc).
  [[nodiscard]] Status load();
  [[nodiscard]] bool load_index(const IndexFile& index);
  void insert_found(std::vector<FoundEntry> found);
  void shrink();  ///< to a budget that may be smaller than it was
  void save_index();

  // These require write_mutex_.
  [[nodiscard]] Status discard(const StoredPtr& stored);
  [[nodiscard]] Status drop_old(const RecordKey& key);
  [[nodiscard]] Result<bool> make_room(std::uint64_t need, bool may_compact,
                                       std::vector<RecordKey>* evicted);
  [[nodiscard]] std::vector<std::pair<RecordKey, StoredPtr>> hide(std::span<const RecordKey> keys);
  void note_outcome(const Status& written);
  [[nodiscard]] Status check_reserve(std::uint64_t need);

  [[nodiscard]] Status store(const RecordKey& key, const Record& record,
                             std::vector<RecordKey>* evicted);
  using ReadEntry = Result<std::shared_ptr<const Record>> (*)(const Place&, const RecordKey&);
  [[nodiscard]] Result<std::shared_ptr<const Record>> read_entry(const RecordKey& key,
                                                                 ReadEntry read, bool is_use);
  /// Reads what the caller, under mutex_, has counted itself a reader of; counts it out again.
  [[nodiscard]] Result<std::shared_ptr<const Record>> read_held(const RecordKey& key,
                                                                const StoredPtr& stored,
                                                                const Place& place, ReadEntry read);
  [[nodiscard]] Result<std::shared_ptr<const Record>> drop_unreadable(const RecordKey& key,
                                                                      const StoredPtr& stored,
                                                                      const Place& place,
                                                                      const Status& why);

  // Compaction and the background thread (disk_tier_compact.cc).
  [[nodiscard]] Status compact_segment(const std::shared_ptr<Segment>& segment);
  [[nodiscard]] Status copy_record(const RecordKey& key, const StoredPtr& stored);
  [[nodiscard]] Status switch_over(const std::shared_ptr<Segment>& segment,
                                   std::span<const std::pair<RecordKey, StoredPtr>> moved);
  void drop_copies(std::span<const std::pair<RecordKey, StoredPtr>> moved);
  [[nodiscard]] bool compact_one(bool for_space, Status* status);
  void run_background();
  void wake(bool sync, bool compact);

  const std::filesystem::path directory_;
  const std::uint64_t budget_bytes_;
  const std::uint64_t usable_bytes_;  ///< the budget without what compaction needs
  const Options options_;
  FileSystem& files_;

  // Lock order: compaction_mutex_, write_mutex_, mutex_.

  std::mutex compaction_mutex_;  ///< held during the compaction of a segment
  /// Held by whoever changes files, for as long as that takes.
  std::mutex write_mutex_;
  SegmentLog log_;

  /// Held for moments only. Entries appear, vanish and move while write_mutex_ is held too.
  mutable std::mutex mutex_;
  std::condition_variable readers_gone_;
  EvictionIndex<StoredPtr> index_;
  std::uint64_t hits_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t corrupt_ = 0;
  std::uint64_t compactions_ = 0;
  std::string degraded_;  // why the last record could not be written

  std::mutex background_mutex_;
  std::condition_variable background_wakes_;
  bool stop_ = false;
  bool sync_due_ = false;
  bool compact_due_ = false;
  std::thread background_;
};

}  // namespace inferscale
