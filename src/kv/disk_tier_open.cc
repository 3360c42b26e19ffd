// DiskTier: opening and closing.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "kv/disk_tier.h"

namespace inferscale {
namespace {

/// A sixteenth of the budget is kept free for compaction, which needs room for one segment's live
/// records; large stores get larger segments instead of thousands of files.
std::uint64_t segment_bytes_for(std::uint64_t budget_bytes) {
  constexpr std::uint64_t kUsual = 64ULL << 20;
  return std::min(budget_bytes / 16, std::max(kUsual, budget_bytes / 256));
}

DiskTier::Options completed(DiskTier::Options options, std::uint64_t budget_bytes) {
  if (options.files == nullptr) {
    options.files = &posix_file_system();
  }
  if (options.segment_bytes == 0) {
    options.segment_bytes = segment_bytes_for(budget_bytes);
  }
  return options;
}

}  // namespace

DiskTier::DiskTier(std::filesystem::path directory, std::uint64_t budget_bytes,
                   const Options& options)
    : directory_(std::move(directory)),
      budget_bytes_(budget_bytes),
      usable_bytes_(budget_bytes - std::min(options.segment_bytes, budget_bytes)),
      options_(options),
      files_(*options.files),
      log_(files_, directory_, options.segment_bytes),
      index_(usable_bytes_ / 5 * 4) {}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const std::filesystem::path& directory,
                                                 std::uint64_t budget_bytes,
                                                 const Options& options) {
  const Options complete = completed(options, budget_bytes);
  if (const Status status = complete.files->make_private_directory(directory); !status.ok()) {
    return unavailable(status.message());
  }
  std::unique_ptr<DiskTier> tier(new DiskTier(directory, budget_bytes, complete));
  INFERSCALE_RETURN_IF_ERROR(tier->load());
  tier->shrink();
  if (complete.background) {
    tier->background_ = std::thread([raw = tier.get()] { raw->run_background(); });
    tier->wake(false, true);
  }
  return tier;
}

DiskTier::~DiskTier() {
  if (background_.joinable()) {
    {
      const std::lock_guard lock(background_mutex_);
      stop_ = true;
    }
    background_wakes_.notify_all();
    background_.join();
  }
  if (const Status status = flush(); status.ok()) {
    save_index();
  } else {
    log_message(LogLevel::kWarning, status.message());
  }
}

Status DiskTier::load() {
  const std::lock_guard writing(write_mutex_);
  const std::optional<IndexFile> index = read_index(files_, directory_);
  const bool loaded = index && load_index(*index);
  if (!loaded) {
    log_.forget();
    std::vector<FoundEntry> found;
    if (const Status status = log_.open(&found); !status.ok()) {
      return unavailable(status.message());
    }
    insert_found(std::move(found));
  }
  // From now on only the segments tell the truth. Where the file cannot be removed, nothing can be
  // changed either, or what it names and is no more fails its checks.
  if (const Status status = remove_index(files_, directory_); !status.ok()) {
    log_message(LogLevel::kInfo, "disk tier: " + status.message());
  }
  return Status();
}

void DiskTier::shrink() {
  Status compacted;
  for (bool may_compact = true;;) {
    {
      const std::lock_guard writing(write_mutex_);
      if (log_.occupied() > usable_bytes_) {
        log_.seal();
      }
      std::vector<RecordKey> evicted;
      const Result<bool> room = make_room(0, may_compact, &evicted);
      if (!room.ok()) {
        const std::lock_guard lock(mutex_);
        note_outcome(room.status());  // a read-only directory can still be served from
      }
      if (!room.ok() || *room) {
        return;
      }
    }
    may_compact = compact_one(true, &compacted);
  }
}

bool DiskTier::load_index(const IndexFile& index) {
  std::unordered_set<std::uint64_t> numbers;
  for (const IndexFile::Segment& segment : index.segments) {
    if (!log_.adopt_unscanned(segment.number, segment.size, segment.reclaimed)) {
      return false;
    }
    numbers.insert(segment.number);
  }
  const auto entries = files_.list(directory_);
  if (!entries.ok() || std::any_of(entries->begin(), entries->end(), [&](const FileEntry& entry) {
        const auto number = segment_format::segment_number(entry.name);
        return number && !numbers.contains(*number);
      })) {
    return false;
  }
  for (const IndexFile::Entry& entry : index.entries) {
    auto segment = log_.find(entry.segment);
    segment->live += entry.bytes;
    const Place place{std::move(segment), entry.offset, entry.bytes};
    const std::lock_guard lock(mutex_);
    index_.remove(entry.key);
    index_.insert({entry.key, place.record_bytes(), static_cast<double>(entry.cost_tokens),
                   std::make_shared<Stored>(Stored{place, std::nullopt, entry.scope})});
  }
  return true;
}

void DiskTier::insert_found(std::vector<FoundEntry> found) {
  std::unordered_map<RecordKey, std::size_t> last;  // of several under a key the last one counts
  for (std::size_t i = 0; i < found.size(); ++i) {
    last[found[i].key] = i;
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    FoundEntry& entry = found[i];
    bool superseded = last[entry.key] != i;
    if (!superseded) {
      const std::lock_guard lock(mutex_);
      superseded = index_.find(entry.key) != nullptr;
      if (!superseded) {
        const std::uint64_t bytes = entry.place.record_bytes();
        index_.insert(
            {entry.key, bytes, entry.cost_tokens,
             std::make_shared<Stored>(Stored{std::move(entry.place), std::nullopt, entry.scope})});
      }
    }
    if (superseded) {
      if (const Status status = log_.discard(entry.place); !status.ok()) {
        log_message(LogLevel::kInfo, "disk tier: " + status.message());
      }
    }
  }
}

void DiskTier::save_index() {
  IndexFile index;
  for (const auto& segment : log_.segments()) {
    if (!segment->writable || segment->torn_tail) {
      return;
    }
    index.segments.push_back({segment->number, segment->end, segment->reclaimed});
  }
  bool settled = true;
  index_.in_eviction_order([&](const auto& entry) {
    const Stored& stored = *entry.value;
    settled = !stored.hidden && !stored.twin;
    index.entries.push_back({entry.key, stored.scope, stored.at.segment->number, stored.at.offset,
                             stored.at.bytes, static_cast<std::uint64_t>(entry.cost)});
    return settled;
  });
  if (!settled) {
    return;  // an erase or a move that did not end: the next start has to look
  }
  if (const Status status = write_index(files_, directory_, index); !status.ok()) {
    log_message(LogLevel::kInfo, "disk tier: no index file: " + status.message());
  }
}

}  // namespace inferscale
