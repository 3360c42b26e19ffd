#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/file_system.h"
#include "inferscale/kv_record.h"
#include "kv/index_file.h"
#include "kv/segment_format.h"
#include "kv/segment_log.h"
#include "kv/segment_scan.h"

/// Any bytes may stand where a segment or an index file is read: the scan ends, every entry that it
/// names lies within the file and behind the one before, and only records whose checksums match are
/// ever served.

namespace {

using namespace inferscale;  // NOLINT: a program of one file
namespace format = segment_format;

constexpr std::uint64_t kNumber = 1;
constexpr std::uint64_t kMaxReads = 16;  // of the input's size, in all

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

/// Bytes in memory that are read as a file; counts what is read.
class BytesFile final : public File {
 public:
  explicit BytesFile(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  Status read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    require(offset <= bytes_.size() && out.size() <= bytes_.size() - offset);
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    bytes_read_ += out.size();
    return Status();
  }
  Status write_at(std::uint64_t, std::span<const std::byte>) override { return refuse(); }
  Status zero(std::uint64_t, std::uint64_t) override { return refuse(); }
  Result<bool> punch(std::uint64_t, std::uint64_t) override { return refuse(); }
  Status truncate(std::uint64_t) override { return refuse(); }
  Status sync() override { return refuse(); }
  Result<std::uint64_t> size() const override { return std::uint64_t{bytes_.size()}; }
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  static Status refuse() {
    std::abort();  // a scan changes nothing
  }
  const std::vector<std::byte> bytes_;
  mutable std::uint64_t bytes_read_ = 0;
};

void check_entry(const ScannedEntry& entry, const std::shared_ptr<Segment>& segment) {
  const Place place{segment, entry.offset, entry.header.bytes};
  if (entry.header.bytes <= format::kEntryHeaderBytes) {
    return;
  }
  const auto record = SegmentLog::read_record(place, entry.header.key);
  if (!record.ok()) {
    require(record.status().code() == StatusCode::kDataLoss);
    return;
  }
  require(entry.sound && (*record)->verify().ok());
  require((*record)->meta().scope == entry.scope);
}

void check_segment(std::vector<std::byte> bytes) {
  const std::uint64_t size = bytes.size();
  auto owned = std::make_unique<BytesFile>(std::move(bytes));
  const BytesFile& file = *owned;
  const auto scan = scan_segment(file, kNumber);
  require(file.bytes_read() <= size * kMaxReads);
  if (!scan.ok()) {
    require(scan.status().code() == StatusCode::kDataLoss);
    return;
  }
  require(scan->end <= size);
  const auto segment = std::make_shared<Segment>(kNumber, "fuzz", std::move(owned), false);
  std::uint64_t end = format::kHeaderBytes;
  for (const ScannedEntry& entry : scan->entries) {
    require(entry.offset >= end && entry.offset % format::kAlignment == 0);
    require(entry.offset + entry.header.bytes <= size);
    end = entry.offset + entry.header.bytes;
    check_entry(entry, segment);
  }
  require(end == scan->end);
  for (const ScannedGap& gap : scan->gaps) {
    require(gap.bytes > 0 && gap.bytes % format::kAlignment == 0);
    require(gap.offset + gap.bytes <= scan->end);
  }
}

void check_index(std::span<const std::byte> bytes) {
  const auto index = decode_index(bytes);
  if (index) {
    const auto again = encode_index(*index);
    require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
}

/// Without this no mutation would ever get past the checksums: wherever an entry header's magic
/// stands, the fields behind it are taken as they are and sealed.
std::vector<std::byte> with_matching_checksums(std::span<const std::byte> input) {
  std::vector<std::byte> bytes(input.begin(), input.end());
  const auto header = format::encode_segment_header(kNumber);
  std::copy(header.begin(), header.end(), bytes.begin());
  const auto magic = format::encode_entry_header(kNumber, 0, {});
  for (std::uint64_t at = format::kHeaderBytes; at + format::kEntryHeaderBytes <= bytes.size();
       at += format::kAlignment) {
    if (!std::equal(magic.begin(), magic.begin() + 8,
                    bytes.begin() + static_cast<std::ptrdiff_t>(at))) {
      continue;
    }
    format::EntryHeader entry;
    std::memcpy(entry.key.value.bytes.data(), bytes.data() + at + 16, 16);
    std::memcpy(&entry.bytes, bytes.data() + at + 32, 8);
    std::memcpy(&entry.tag, bytes.data() + at + 40, 8);
    std::array<std::byte, 8> state{};
    std::memcpy(state.data(), bytes.data() + at + format::kStateAt, state.size());
    const auto sealed = format::encode_entry_header(kNumber, at, entry);
    std::memcpy(bytes.data() + at, sealed.data(), sealed.size());
    std::memcpy(bytes.data() + at + format::kStateAt, state.data(), state.size());
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check_segment({bytes.begin(), bytes.end()});
  if (size >= format::kHeaderBytes) {
    check_segment(with_matching_checksums(bytes));
  }
  check_index(bytes);
  return 0;
}
