// SegmentLog: what happens when a directory is opened.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "kv/segment_log.h"

namespace inferscale {

namespace format = segment_format;

Status SegmentLog::list(std::vector<std::uint64_t>* numbers) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<FileEntry> entries, files_.list(directory_));
  for (const FileEntry& entry : entries) {
    const auto number = format::segment_number(entry.name);
    if (number && *number > 0 && !entry.is_directory) {
      numbers->push_back(*number);
    }
  }
  std::sort(numbers->begin(), numbers->end());
  return Status();
}

Status SegmentLog::open(std::vector<FoundEntry>* found) {
  std::vector<std::uint64_t> numbers;
  INFERSCALE_RETURN_IF_ERROR(list(&numbers));
  for (const std::uint64_t number : numbers) {
    next_number_ = std::max(next_number_, number + 1);
    if (const Status status = adopt(number, found); !status.ok()) {
      log_message(LogLevel::kWarning, "disk tier: not used for now: " + status.message());
      unread_.push_back(number);
    }
  }
  // Go on where the last one ended, or many short runs would leave as many small files.
  const auto all = segments();
  if (!all.empty() && all.back()->writable && all.back()->number + 1 == next_number_) {
    active_ = all.back();
  }
  return Status();
}

/// For reading alone where it cannot be written.
Result<std::shared_ptr<Segment>> SegmentLog::open_segment(std::uint64_t number) {
  const std::filesystem::path path = directory_ / format::segment_name(number);
  Result<std::unique_ptr<File>> file = files_.open(path, OpenMode::kReadWrite);
  const bool writable = file.ok();
  if (!writable) {
    file = files_.open(path, OpenMode::kRead);
  }
  INFERSCALE_RETURN_IF_ERROR(file.status());
  return std::make_shared<Segment>(number, path, std::move(*file), writable);
}

Status SegmentLog::adopt(std::uint64_t number, std::vector<FoundEntry>* found) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Segment> segment, open_segment(number));
  const Result<SegmentScan> scan = scan_segment(*segment->file, number);
  if (scan.status().code() == StatusCode::kDataLoss) {
    ++damaged_;
    log_message(LogLevel::kWarning, fmt::format("{}: {}; its facts are encoded again when wanted",
                                                segment->path.string(), scan.status().message()));
    return wipe_file(segment->path, files_);
  }
  INFERSCALE_RETURN_IF_ERROR(scan.status());
  segment->end = scan->end;
  for (const ScannedEntry& entry : scan->entries) {
    if (entry.header.state == format::EntryState::kLive) {
      segment->live += entry.header.bytes;
    }
    if (entry.sound) {
      found->push_back({entry.header.key,
                        entry.scope,
                        entry.cost_tokens,
                        {segment, entry.offset, entry.header.bytes}});
    }
  }
  // A process that was killed may never have synced what it wrote.
  segment->unsynced = true;
  unsynced_bytes_ += segment->live;
  new_names_ = true;
  add(segment);
  repair(segment, *scan);
  return Status();
}

/// What cannot be repaired now is found again at the next start, and never served.
void SegmentLog::repair(const std::shared_ptr<Segment>& segment, const SegmentScan& scan) {
  const std::uint64_t damaged_before = damaged_;
  for (const ScannedGap& gap : scan.gaps) {
    ++damaged_;
    // Whatever it was, nobody could erase it by its name. An entry that is clean takes its place.
    const format::EntryHeader filler{RecordKey{}, gap.bytes, 0, format::EntryState::kErased};
    if (segment->writable && segment->file->zero(gap.offset, gap.bytes).ok() &&
        segment->file
            ->write_at(gap.offset, format::encode_entry_header(segment->number, gap.offset, filler))
            .ok()) {
      segment->unsettled.try_emplace(gap.offset, Segment::Unsettled{gap.bytes});
    }
  }
  for (const ScannedEntry& entry : scan.entries) {
    const Place place{segment, entry.offset, entry.header.bytes};
    switch (entry.header.state) {
      case format::EntryState::kLive:
        if (!entry.sound) {
          ++damaged_;
          (void)zero(place);
        }
        break;
      case format::EntryState::kErased:  // a crash came before the end of an erase
        segment->live += place.bytes;    // `zero` takes it off again
        if (!zero(place).ok()) {
          segment->live -= place.bytes;
        }
        break;
      case format::EntryState::kClean:
        reclaim_clean(place);
        break;
    }
  }
  const auto size = segment->file->size();
  if (size.ok() && *size > scan.end) {
    ++torn_;
    log_message(LogLevel::kInfo, fmt::format("{}: {} bytes of a torn record dropped",
                                             segment->path.string(), *size - scan.end));
    segment->torn_tail = true;
    if (segment->writable && segment->file->zero(scan.end, *size - scan.end).ok()) {
      (void)cut_tail(*segment);
    }
  }
  if (damaged_ > damaged_before) {
    log_message(LogLevel::kWarning,
                fmt::format("{}: {} damaged records dropped, their facts are encoded again when "
                            "wanted",
                            segment->path.string(), damaged_ - damaged_before));
  }
  remove_if_dead(segment);
}

bool SegmentLog::adopt_unscanned(std::uint64_t number, std::uint64_t size,
                                 std::uint64_t reclaimed) {
  const auto opened = open_segment(number);
  if (!opened.ok()) {
    return false;
  }
  const std::shared_ptr<Segment>& segment = *opened;
  const auto actual = segment->file->size();
  if (!actual.ok() || *actual != size || reclaimed > size || size < format::kHeaderBytes) {
    return false;
  }
  segment->end = size;
  segment->reclaimed = reclaimed;
  add(segment);
  next_number_ = std::max(next_number_, number + 1);
  active_ = segment->writable ? segment : nullptr;  // numbers come in ascending order
  return true;
}

void SegmentLog::forget() {
  active_ = nullptr;
  unread_.clear();
  next_number_ = 1;
  const std::lock_guard lock(mutex_);
  segments_.clear();
}

Status SegmentLog::resolve_unread(std::vector<FoundEntry>* found) {
  Status first_error;
  std::vector<std::uint64_t> still_unread;
  for (const std::uint64_t number : std::exchange(unread_, {})) {
    Status status = adopt(number, found);
    if (!status.ok()) {
      status = wipe_file(directory_ / format::segment_name(number), files_);
    }
    if (!status.ok()) {
      still_unread.push_back(number);
      first_error = first_error.ok() ? status : first_error;
    }
  }
  unread_ = std::move(still_unread);
  return first_error;
}

}  // namespace inferscale
