#include "kv/segment_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "kv/record_format.h"
#include "kv/record_header.h"

namespace inferscale {
namespace {

namespace format = segment_format;
constexpr std::uint64_t kBlockBytes = 4096;  // what file systems give back at least

Status write_state(Segment& segment, std::uint64_t offset, format::EntryState state) {
  return segment.file->write_at(offset + format::kStateAt, format::encode_state(state));
}

/// Gives back whole blocks of an entry behind its header; zeroes the rest with `zero_rest`. Returns
/// the bytes given back.
Result<std::uint64_t> give_back(Segment& segment, std::uint64_t offset, std::uint64_t bytes,
                                bool zero_rest) {
  const std::uint64_t begin = offset + format::kEntryHeaderBytes;
  const std::uint64_t end = offset + bytes;
  const std::uint64_t first = (begin + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const std::uint64_t last = end / kBlockBytes * kBlockBytes;
  bool punched = false;
  if (first < last) {
    INFERSCALE_ASSIGN_OR_RETURN(punched, segment.file->punch(first, last - first));
  }
  if (zero_rest && punched) {
    INFERSCALE_RETURN_IF_ERROR(segment.file->zero(begin, first - begin));
    INFERSCALE_RETURN_IF_ERROR(segment.file->zero(last, end - last));
  } else if (zero_rest) {
    INFERSCALE_RETURN_IF_ERROR(segment.file->zero(begin, end - begin));
  }
  return punched ? last - first : 0;
}

/// Reads from an entry, `at` bytes behind its start.
Status read_part(const Place& place, std::uint64_t at, std::span<std::byte> out) {
  const File& file = *place.segment->file;
  const Status status = file.read_at(place.offset + at, out);
  if (status.code() != StatusCode::kDataLoss) {
    return status;
  }
  const auto size = file.size();  // an early end of a file that is long enough may pass
  return size.ok() && *size < place.offset + place.bytes ? status : unavailable(status.message());
}

/// Is this header that of a live entry of this key and record?
Status check_entry(const Place& place, const RecordKey& key, const format::HeaderBytes& bytes,
                   std::span<const std::byte> record) {
  const auto header = format::decode_entry_header(place.segment->number, place.offset, bytes);
  if (!header || header->key != key || header->bytes != place.bytes ||
      header->tag != format::record_tag(record) || header->state != format::EntryState::kLive) {
    return data_loss("segment entry: its header does not match");
  }
  return Status();
}

Status read_only(const Segment& segment) {
  return unavailable(segment.path.string() + " cannot be written");
}

}  // namespace

Result<std::shared_ptr<const Record>> SegmentLog::read_record(const Place& place,
                                                              const RecordKey& key) {
  // The record first: a short read of the header would come from the disk on its own.
  auto record = Record::read(place.record_bytes(), [&](std::span<std::byte> out) {
    return read_part(place, format::kEntryHeaderBytes, out);
  });
  INFERSCALE_RETURN_IF_ERROR(record.status());
  format::HeaderBytes bytes{};
  INFERSCALE_RETURN_IF_ERROR(read_part(place, 0, bytes));
  INFERSCALE_RETURN_IF_ERROR(check_entry(place, key, bytes, (*record)->bytes()));
  return record;
}

Result<std::shared_ptr<const Record>> SegmentLog::read_description(const Place& place,
                                                                   const RecordKey& key) {
  std::array<std::byte, format::kEntryHeaderBytes + record_format::kHeaderBytes> bytes{};
  if (place.bytes < bytes.size()) {
    return data_loss("segment entry: too short for a record");
  }
  INFERSCALE_RETURN_IF_ERROR(read_part(place, 0, bytes));
  const auto record = std::span(bytes).subspan(format::kEntryHeaderBytes);
  INFERSCALE_ASSIGN_OR_RETURN(const RecordHeader header, decode_record_header(record));
  format::HeaderBytes entry{};
  std::copy_n(bytes.begin(), entry.size(), entry.begin());
  INFERSCALE_RETURN_IF_ERROR(check_entry(place, key, entry, record));
  if (record_layout(header.meta, header.n_tokens).total_bytes != place.record_bytes()) {
    return data_loss("record: its size is not that of its entry");
  }
  std::vector<TokenId> tokens(header.n_tokens);
  INFERSCALE_RETURN_IF_ERROR(
      read_part(place, bytes.size(), std::as_writable_bytes(std::span(tokens))));
  if (token_hash(tokens) != header.token_hash) {
    return data_loss("record token ids: hash does not match");
  }
  return Record::describe(header.meta, tokens);
}

Status SegmentLog::create() {
  INFERSCALE_RETURN_IF_ERROR(files_.make_private_directory(directory_));
  const std::uint64_t number = next_number_;
  const std::filesystem::path path = directory_ / format::segment_name(number);
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_.open(path, OpenMode::kCreate));
  if (const Status status = file->write_at(0, format::encode_segment_header(number));
      !status.ok()) {
    (void)files_.remove(path);  // if it stays, the next start drops it
    return status;
  }
  next_number_ = number + 1;
  new_names_ = true;
  active_ = std::make_shared<Segment>(number, path, std::move(file), true);
  add(active_);
  return Status();
}

Result<Place> SegmentLog::append(const RecordKey& key, std::span<const std::byte> record) {
  const std::uint64_t bytes = format::kEntryHeaderBytes + record.size();
  if (active_ != nullptr && active_->end > format::kHeaderBytes &&
      active_->end + bytes > segment_bytes_) {
    active_ = nullptr;
  }
  if (active_ == nullptr) {
    INFERSCALE_RETURN_IF_ERROR(create());
  }
  Segment& segment = *active_;
  INFERSCALE_RETURN_IF_ERROR(cut_tail(segment));
  const std::uint64_t offset = segment.end;
  const auto header = format::encode_entry_header(
      segment.number, offset, {key, bytes, format::record_tag(record), format::EntryState::kLive});
  // The header last: a process that is killed between the two leaves no entry with half a record.
  segment.torn_tail = true;
  Status status = segment.file->write_at(offset + format::kEntryHeaderBytes, record);
  if (status.ok()) {
    status = segment.file->write_at(offset, header);
  }
  if (!status.ok()) {
    (void)cut_tail(segment);  // tried again before the next append, and by settle
    return status;
  }
  segment.torn_tail = false;
  segment.end += bytes;
  segment.live += bytes;
  segment.unsynced = true;
  unsynced_bytes_ += bytes;
  return Place{active_, offset, bytes};
}

Status SegmentLog::cut_tail(Segment& segment) {
  if (segment.torn_tail) {
    INFERSCALE_RETURN_IF_ERROR(segment.file->truncate(segment.end));
    segment.torn_tail = false;
    segment.must_sync = true;
  }
  return Status();
}

Status SegmentLog::zero(const Place& place) {
  Segment& segment = *place.segment;
  if (!segment.writable) {
    return read_only(segment);
  }
  INFERSCALE_RETURN_IF_ERROR(write_state(segment, place.offset, format::EntryState::kErased));
  INFERSCALE_RETURN_IF_ERROR(
      segment.file->zero(place.offset + format::kEntryHeaderBytes, place.record_bytes()));
  const auto inserted =
      segment.unsettled.try_emplace(place.offset, Segment::Unsettled{place.bytes});
  if (inserted.second) {
    segment.live -= place.bytes;
  }
  return Status();
}

Status SegmentLog::discard(const Place& place) {
  Segment& segment = *place.segment;
  if (!segment.writable) {
    return read_only(segment);
  }
  INFERSCALE_RETURN_IF_ERROR(write_state(segment, place.offset, format::EntryState::kErased));
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t given_back,
                              give_back(segment, place.offset, place.bytes, true));
  const auto inserted =
      segment.unsettled.try_emplace(place.offset, Segment::Unsettled{place.bytes, true});
  if (inserted.second) {
    segment.live -= place.bytes;
    segment.reclaimed += given_back;
  }
  remove_if_dead(place.segment);
  return Status();
}

Status SegmentLog::settle() {
  Status first_error;
  const auto note = [&](const Status& status) {
    if (first_error.ok() && !status.ok()) {
      first_error = status;
    }
  };
  for (const auto& segment : segments()) {
    if (segment->writable &&
        (segment->torn_tail || segment->must_sync || !segment->unsettled.empty())) {
      note(settle(*segment));
    }
    if (segment->unsettled.empty()) {
      remove_if_dead(segment);
    }
  }
  if (removed_unsettled_) {
    const Status status = files_.sync_directory(directory_);
    removed_unsettled_ = !status.ok();
    note(status);
  }
  return first_error;
}

Status SegmentLog::settle(Segment& segment) {
  INFERSCALE_RETURN_IF_ERROR(cut_tail(segment));
  if (segment.doubtful) {
    for (const auto& [offset, entry] : segment.unsettled) {
      INFERSCALE_RETURN_IF_ERROR(write_state(segment, offset, format::EntryState::kErased));
      INFERSCALE_RETURN_IF_ERROR(segment.file->zero(offset + format::kEntryHeaderBytes,
                                                    entry.bytes - format::kEntryHeaderBytes));
    }
  }
  segment.doubtful = true;
  INFERSCALE_RETURN_IF_ERROR(segment.file->sync());
  ++syncs_;
  segment.doubtful = false;
  segment.must_sync = false;
  // The rest saves space and the next scan's time; if it fails, nothing is lost.
  for (const auto& [offset, entry] : segment.unsettled) {
    if (!entry.reclaimed) {
      const auto given_back = give_back(segment, offset, entry.bytes, false);
      segment.reclaimed += given_back.ok() ? *given_back : 0;
    }
    (void)write_state(segment, offset, format::EntryState::kClean);
  }
  segment.unsettled.clear();
  return Status();
}

bool SegmentLog::settled(const Place& place) const {
  return find(place.segment->number) == place.segment
             ? !place.segment->unsettled.contains(place.offset)
             : !removed_unsettled_;
}

Status SegmentLog::sync() {
  Status first_error;
  unsynced_bytes_ = 0;
  for (const auto& segment : segments()) {
    if (!segment->unsynced.exchange(false)) {
      continue;
    }
    ++syncs_;
    if (const Status status = segment->file->sync(); !status.ok()) {
      segment->unsynced = true;
      first_error = first_error.ok() ? status : first_error;
    }
  }
  if (new_names_.exchange(false)) {
    if (const Status status = files_.sync_directory(directory_); !status.ok()) {
      new_names_ = true;
      first_error = first_error.ok() ? status : first_error;
    }
  }
  return first_error;
}

void SegmentLog::remove_if_dead(const std::shared_ptr<Segment>& segment) {
  if (segment->live != 0 || !segment->writable || find(segment->number) != segment ||
      (segment == active_ && segment->end == format::kHeaderBytes)) {
    return;
  }
  // A file that cannot be removed stays, and the next call tries again.
  if (const Status status = files_.remove(segment->path); !status.ok()) {
    log_message(LogLevel::kWarning, "disk tier: " + status.message());
    return;
  }
  removed_unsettled_ |= !segment->unsettled.empty() || segment->torn_tail;
  if (active_ == segment) {
    active_ = nullptr;
  }
  const std::lock_guard lock(mutex_);
  segments_.erase(segment->number);
}

void SegmentLog::reclaim_clean(const Place& place) {
  if (place.segment->writable) {
    const auto given_back = give_back(*place.segment, place.offset, place.bytes, false);
    place.segment->reclaimed += given_back.ok() ? *given_back : 0;
  }
}

std::shared_ptr<Segment> SegmentLog::compactable(bool for_space) const {
  std::shared_ptr<Segment> best;
  for (const auto& segment : segments()) {
    const bool half =
        for_space ? segment->garbage() >= segment->live : segment->dead() >= segment->live;
    if (half && segment->writable && segment != active_ && segment->garbage() > 0 &&
        (best == nullptr || segment->live < best->live)) {
      best = segment;
    }
  }
  return best;
}

void SegmentLog::add(const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  segments_[segment->number] = segment;
}

std::shared_ptr<Segment> SegmentLog::find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = segments_.find(number);
  return found == segments_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Segment>> SegmentLog::segments() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Segment>> all;
  all.reserve(segments_.size());
  for (const auto& [number, segment] : segments_) {
    all.push_back(segment);
  }
  return all;
}

SegmentLog::Totals SegmentLog::totals() const {
  Totals totals;
  totals.damaged = damaged_;
  totals.torn = torn_;
  totals.syncs = syncs_;
  const std::lock_guard lock(mutex_);
  totals.segments = segments_.size();
  for (const auto& [number, segment] : segments_) {
    totals.occupied += segment->occupied();
  }
  return totals;
}

}  // namespace inferscale
