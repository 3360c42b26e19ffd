#include "kv/segment_scan.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "kv/eviction_index.h"
#include "kv/record_format.h"
#include "kv/record_header.h"

namespace inferscale {
namespace {

namespace format = segment_format;
constexpr std::uint64_t kFirstWindow =
    256;  // grows, so that what is read stays near what is skipped
constexpr std::uint64_t kLastWindow = 1U << 20;

/// Within the size that was just asked for, so that an early end is a failure of the medium, which
/// says nothing about what is stored.
Status read_within(const File& file, std::uint64_t offset, std::span<std::byte> out) {
  const Status status = file.read_at(offset, out);
  return status.code() == StatusCode::kDataLoss ? unavailable(status.message()) : status;
}

class Scanner {
 public:
  Scanner(const File& file, std::uint64_t number, std::uint64_t size)
      : file_(file), number_(number), size_(size) {}

  Result<SegmentScan> run() {
    std::uint64_t offset = format::kHeaderBytes;
    scan_.end = offset;
    while (offset + format::kEntryHeaderBytes <= size_) {
      INFERSCALE_ASSIGN_OR_RETURN(std::optional<ScannedEntry> entry, read_entry(offset));
      if (!entry) {
        INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t next, resync(offset));
        if (next == size_) {
          break;
        }
        scan_.gaps.push_back({offset, next - offset});
        offset = next;
        continue;
      }
      offset += entry->header.bytes;
      scan_.entries.push_back(*entry);
      scan_.end = offset;
    }
    return std::move(scan_);
  }

 private:
  /// Nothing when no entry that lies within the file begins here.
  Result<std::optional<ScannedEntry>> read_entry(std::uint64_t offset) {
    std::array<std::byte, format::kEntryHeaderBytes + record_format::kHeaderBytes> start{};
    const auto bytes =
        std::span(start).first(std::min<std::uint64_t>(start.size(), size_ - offset));
    INFERSCALE_RETURN_IF_ERROR(read_within(file_, offset, bytes));
    const auto header = format::decode_entry_header(number_, offset, bytes);
    if (!header || header->bytes > size_ - offset) {
      return std::optional<ScannedEntry>();
    }
    ScannedEntry entry{*header, offset, {}, false};
    if (header->state == format::EntryState::kLive && bytes.size() == start.size()) {
      const auto record_start = bytes.subspan(format::kEntryHeaderBytes);
      const auto record = decode_record_header(record_start);
      entry.sound = record.ok() && format::record_tag(record_start) == header->tag &&
                    record_layout(record->meta, record->n_tokens).total_bytes ==
                        header->bytes - format::kEntryHeaderBytes;
      if (record.ok()) {
        entry.scope = record->meta.scope;
        entry.cost_tokens = recompute_tokens(record->meta, record->n_tokens);
      }
    }
    return std::optional(entry);
  }

  /// Where the next entry behind `offset` begins, or the size of the file.
  Result<std::uint64_t> resync(std::uint64_t offset) {
    std::vector<std::byte> window;
    std::uint64_t at = offset + format::kAlignment;
    std::uint64_t window_bytes = kFirstWindow;
    while (at + format::kEntryHeaderBytes <= size_) {
      window.resize(std::min(window_bytes, size_ - at));
      INFERSCALE_RETURN_IF_ERROR(read_within(file_, at, window));
      const std::span<const std::byte> bytes(window);
      for (std::size_t i = 0; i + format::kEntryHeaderBytes <= bytes.size();
           i += format::kAlignment) {
        const auto header = format::decode_entry_header(
            number_, at + i, bytes.subspan(i, format::kEntryHeaderBytes));
        if (header && header->bytes <= size_ - at - i) {
          return at + i;
        }
      }
      at += window_bytes;
      window_bytes = std::min(window_bytes * 2, kLastWindow);
    }
    return size_;
  }

  const File& file_;
  const std::uint64_t number_;
  const std::uint64_t size_;
  SegmentScan scan_;
};

}  // namespace

Result<SegmentScan> scan_segment(const File& file, std::uint64_t number) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t size, file.size());
  if (size < format::kHeaderBytes) {
    return data_loss("segment header: missing");
  }
  format::HeaderBytes header{};
  INFERSCALE_RETURN_IF_ERROR(read_within(file, 0, header));
  INFERSCALE_RETURN_IF_ERROR(format::check_segment_header(number, header));
  return Scanner(file, number, size).run();
}

}  // namespace inferscale
