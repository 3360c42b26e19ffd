#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/file_system.h"
#include "inferscale/kv_record.h"
#include "inferscale/status.h"
#include "kv/segment_format.h"
#include "kv/segment_scan.h"

namespace inferscale {

/// An open segment file (docs/format.md) and what is known about its space.
struct Segment {
  struct Unsettled {
    std::uint64_t bytes = 0;
    bool reclaimed = false;  ///< its blocks were given back already
  };

  Segment(std::uint64_t number_in, std::filesystem::path path_in, std::unique_ptr<File> file_in,
          bool writable_in)
      : number(number_in),
        path(std::move(path_in)),
        file(std::move(file_in)),
        writable(writable_in) {}

  const std::uint64_t number;
  const std::filesystem::path path;
  const std::unique_ptr<File> file;
  const bool writable;

  // Changed by the writer, read by anybody.
  std::atomic<std::uint64_t> end{segment_format::kHeaderBytes};  ///< where the next entry goes
  std::atomic<std::uint64_t> live{0};                            ///< bytes of entries that are live
  std::atomic<std::uint64_t> reclaimed{0};  ///< bytes that were given back to the file system
  std::atomic<bool> unsynced{false};        ///< entries were appended since the last sync

  // The writer's.
  std::map<std::uint64_t, Unsettled> unsettled;  ///< entries zeroed or discarded since, by offset
  bool doubtful = false;   ///< a sync failed: what `unsettled` names must be zeroed again
  bool must_sync = false;  ///< bytes were cut off or zeroed since the last sync
  bool torn_tail = false;  ///< bytes of a failed append may stand behind `end`

  std::uint64_t readers = 0;  ///< protected by the tier's mutex

  [[nodiscard]] std::uint64_t occupied() const { return end - reclaimed; }
  [[nodiscard]] std::uint64_t dead() const { return end - segment_format::kHeaderBytes - live; }
  /// Bytes that compaction would free.
  [[nodiscard]] std::uint64_t garbage() const { return dead() - reclaimed; }
};

/// Where an entry stands.
struct Place {
  std::shared_ptr<Segment> segment;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  ///< of the entry
  [[nodiscard]] std::uint64_t record_bytes() const {
    return bytes - segment_format::kEntryHeaderBytes;
  }
};

/// A live entry that was found at open.
struct FoundEntry {
  RecordKey key;
  Hash128 scope;
  double cost_tokens = 0;  ///< what having the record again costs
  Place place;
};

/// The segments of one directory: appends entries, takes them away, syncs. Knows no keys. One
/// writer at a time (the tier's write mutex); `read_record`, `totals` and `sync` may be called by
/// anybody at any time.
class SegmentLog {
 public:
  struct Totals {
    std::uint64_t segments = 0;
    std::uint64_t occupied = 0;
    std::uint64_t damaged = 0;  ///< entries that the scan at open found damaged
    std::uint64_t torn = 0;     ///< tails that it cut off
    std::uint64_t syncs = 0;
  };

  SegmentLog(FileSystem& files, std::filesystem::path directory, std::uint64_t segment_bytes)
      : files_(files), directory_(std::move(directory)), segment_bytes_(segment_bytes) {}

  /// Scans all segments, repairs what it can, and appends what is live in the order in which it was
  /// stored. A segment that cannot be read now is left alone. Errors: kUnavailable.
  [[nodiscard]] Status open(std::vector<FoundEntry>* found);
  /// Takes a segment as a hint describes it. False unless the file has exactly this size.
  [[nodiscard]] bool adopt_unscanned(std::uint64_t number, std::uint64_t size,
                                     std::uint64_t reclaimed);
  /// As before any `open` or `adopt_unscanned`.
  void forget();

  [[nodiscard]] static Result<std::shared_ptr<const Record>> read_record(const Place& place,
                                                                         const RecordKey& key);
  /// The record's description, of its header and token ids: reads nothing else. Errors: as
  /// `read_record`, of what it reads.
  [[nodiscard]] static Result<std::shared_ptr<const Record>> read_description(const Place& place,
                                                                              const RecordKey& key);

  /// Not synced. Errors: as File.
  [[nodiscard]] Result<Place> append(const RecordKey& key, std::span<const std::byte> record);
  /// Marks an entry and overwrites it with zeros in place. Needs no space; may be repeated.
  [[nodiscard]] Status zero(const Place& place);
  /// Marks an entry and gives its space back at once; what cannot be given back is zeroed.
  [[nodiscard]] Status discard(const Place& place);
  /// Returns when no byte of any entry that was zeroed or discarded is left after a power cut
  /// either; their space is free then. Errors: kUnavailable; those are still in `unsettled`.
  [[nodiscard]] Status settle();
  /// Whether `settle` has done so for this one, which was zeroed or discarded.
  [[nodiscard]] bool settled(const Place& place) const;
  /// Segments that could not be read at open are read again, or else wiped, since nobody can tell
  /// what is in them. Appends what was found. Errors: kUnavailable.
  [[nodiscard]] Status resolve_unread(std::vector<FoundEntry>* found);

  /// What was appended until now will survive a power cut. Any thread, without the write mutex.
  [[nodiscard]] Status sync();
  /// Removes the file of a segment without live entries.
  void remove_if_dead(const std::shared_ptr<Segment>& segment);
  /// The next append starts a segment.
  void seal() { active_ = nullptr; }

  /// The one with the fewest live bytes of those not being appended to where half of the space
  /// could be freed (`for_space`) or half of the entries' bytes are dead. Null when there is none.
  [[nodiscard]] std::shared_ptr<Segment> compactable(bool for_space) const;
  [[nodiscard]] std::shared_ptr<Segment> find(std::uint64_t number) const;
  [[nodiscard]] std::vector<std::shared_ptr<Segment>> segments() const;
  [[nodiscard]] std::uint64_t occupied() const { return totals().occupied; }
  [[nodiscard]] std::uint64_t unsynced_bytes() const { return unsynced_bytes_; }
  [[nodiscard]] Totals totals() const;

 private:
  [[nodiscard]] Status create();
  [[nodiscard]] Status list(std::vector<std::uint64_t>* numbers);
  [[nodiscard]] Result<std::shared_ptr<Segment>> open_segment(std::uint64_t number);
  [[nodiscard]] Status adopt(std::uint64_t number, std::vector<FoundEntry>* found);
  void repair(const std::shared_ptr<Segment>& segment, const SegmentScan& scan);
  void reclaim_clean(const Place& place);
  [[nodiscard]] Status cut_tail(Segment& segment);
  [[nodiscard]] Status settle(Segment& segment);
  void add(const std::shared_ptr<Segment>& segment);

  FileSystem& files_;
  const std::filesystem::path directory_;
  const std::uint64_t segment_bytes_;

  // The writer's.
  std::shared_ptr<Segment> active_;
  std::vector<std::uint64_t> unread_;
  std::uint64_t next_number_ = 1;
  bool removed_unsettled_ = false;  // files are gone whose entries a power cut could bring back

  std::atomic<std::uint64_t> unsynced_bytes_{0};
  std::atomic<bool> new_names_{false};  // files were made since the directory was synced
  std::atomic<std::uint64_t> damaged_{0};
  std::atomic<std::uint64_t> torn_{0};
  std::atomic<std::uint64_t> syncs_{0};

  mutable std::mutex mutex_;                                    // for moments
  std::map<std::uint64_t, std::shared_ptr<Segment>> segments_;  // changed by the writer only
};

}  // namespace inferscale
