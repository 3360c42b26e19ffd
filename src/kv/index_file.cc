#include "kv/index_file.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/file.h"
#include "base/hash.h"
#include "kv/segment_format.h"

namespace inferscale {
namespace {

constexpr char kMagic[8] = {'I', 'S', 'I', 'N', 'D', 'E', 'X', '1'};
constexpr const char* kTemporaryName = "index.tmp";
constexpr std::size_t kHeaderBytes = 24;
constexpr std::size_t kSegmentBytes = 24;
constexpr std::size_t kEntryBytes = 64;
constexpr std::size_t kChecksumBytes = 16;
constexpr std::uint64_t kMaxFileBytes = 1ULL << 30;

class Writer {
 public:
  template <typename T>
  void add(const T& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> out;
};

/// REQUIRES: what is taken is there.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_ = bytes_.subspan(sizeof(value));
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
};

bool fits(const IndexFile::Entry& entry, const std::map<std::uint64_t, std::uint64_t>& sizes) {
  namespace format = segment_format;
  const auto size = sizes.find(entry.segment);
  return size != sizes.end() && entry.offset >= format::kHeaderBytes &&
         entry.offset % format::kAlignment == 0 && entry.bytes > format::kEntryHeaderBytes &&
         entry.bytes % format::kAlignment == 0 && entry.offset <= size->second &&
         entry.bytes <= size->second - entry.offset;
}

}  // namespace

bool is_disk_tier_file(std::string_view name) {
  return segment_format::segment_number(name).has_value() || name == IndexFile::kName ||
         name == kTemporaryName;
}

std::vector<std::byte> encode_index(const IndexFile& index) {
  Writer writer;
  writer.out.reserve(kHeaderBytes + index.segments.size() * kSegmentBytes +
                     index.entries.size() * kEntryBytes + kChecksumBytes);
  writer.add(kMagic);
  writer.add(static_cast<std::uint64_t>(index.segments.size()));
  writer.add(static_cast<std::uint64_t>(index.entries.size()));
  for (const IndexFile::Segment& segment : index.segments) {
    writer.add(segment.number);
    writer.add(segment.size);
    writer.add(segment.reclaimed);
  }
  for (const IndexFile::Entry& entry : index.entries) {
    writer.add(entry.key.value.bytes);
    writer.add(entry.scope.bytes);
    writer.add(entry.segment);
    writer.add(entry.offset);
    writer.add(entry.bytes);
    writer.add(entry.cost_tokens);
  }
  writer.add(xxh3_128(writer.out).bytes);
  return std::move(writer.out);
}

std::optional<IndexFile> decode_index(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes ||
      std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return std::nullopt;
  }
  const auto content = bytes.first(bytes.size() - kChecksumBytes);
  if (xxh3_128(content) != Reader(bytes.subspan(content.size())).take<Hash128>()) {
    return std::nullopt;
  }
  Reader reader(content.subspan(sizeof(kMagic)));
  const auto n_segments = reader.take<std::uint64_t>();
  const auto n_entries = reader.take<std::uint64_t>();
  const std::uint64_t left = content.size() - kHeaderBytes;
  if (n_segments > left / kSegmentBytes || n_entries > left / kEntryBytes ||
      n_segments * kSegmentBytes + n_entries * kEntryBytes != left) {
    return std::nullopt;
  }
  IndexFile index;
  std::map<std::uint64_t, std::uint64_t> sizes;
  for (std::uint64_t i = 0; i < n_segments; ++i) {
    IndexFile::Segment segment;
    segment.number = reader.take<std::uint64_t>();
    segment.size = reader.take<std::uint64_t>();
    segment.reclaimed = reader.take<std::uint64_t>();
    if (i > 0 && segment.number <= index.segments.back().number) {
      return std::nullopt;
    }
    sizes.emplace(segment.number, segment.size);
    index.segments.push_back(segment);
  }
  for (std::uint64_t i = 0; i < n_entries; ++i) {
    IndexFile::Entry entry;
    entry.key.value = reader.take<Hash128>();
    entry.scope = reader.take<Hash128>();
    entry.segment = reader.take<std::uint64_t>();
    entry.offset = reader.take<std::uint64_t>();
    entry.bytes = reader.take<std::uint64_t>();
    entry.cost_tokens = reader.take<std::uint64_t>();
    if (!fits(entry, sizes)) {
      return std::nullopt;
    }
    index.entries.push_back(entry);
  }
  return index;
}

Status write_index(FileSystem& files, const std::filesystem::path& directory,
                   const IndexFile& index) {
  const std::filesystem::path temporary = directory / kTemporaryName;
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                              files.open(temporary, OpenMode::kCreate));
  INFERSCALE_RETURN_IF_ERROR(file->truncate(0));
  INFERSCALE_RETURN_IF_ERROR(file->write_at(0, encode_index(index)));
  INFERSCALE_RETURN_IF_ERROR(file->sync());
  INFERSCALE_RETURN_IF_ERROR(files.rename(temporary, directory / IndexFile::kName));
  return files.sync_directory(directory);
}

std::optional<IndexFile> read_index(FileSystem& files, const std::filesystem::path& directory) {
  const auto bytes = read_file(directory / IndexFile::kName, kMaxFileBytes, files);
  return bytes.ok() ? decode_index(*bytes) : std::nullopt;
}

Status remove_index(FileSystem& files, const std::filesystem::path& directory) {
  INFERSCALE_RETURN_IF_ERROR(files.remove(directory / kTemporaryName));
  INFERSCALE_RETURN_IF_ERROR(files.remove(directory / IndexFile::kName));
  return files.sync_directory(directory);
}

}  // namespace inferscale
