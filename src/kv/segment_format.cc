#include "kv/segment_format.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>

#include "base/hash.h"
#include "kv/byte_fields.h"
#include "kv/record_format.h"

namespace inferscale::segment_format {
namespace {

constexpr char kSegmentMagic[8] = {'I', 'S', 'S', 'E', 'G', 'M', 'N', 'T'};
constexpr char kEntryMagic[8] = {'I', 'S', 'E', 'N', 'T', 'R', 'Y', '1'};
// Any two differ in every byte and in 28 bits or more: no torn write and no few flipped bits make a
// live state of another.
constexpr StateBytes kLiveState = {std::byte{0x4C}, std::byte{0x69}, std::byte{0x76},
                                   std::byte{0x65}, std::byte{0xB3}, std::byte{0x96},
                                   std::byte{0x89}, std::byte{0x9A}};
constexpr StateBytes kErasedState = {std::byte{0xB3}, std::byte{0x96}, std::byte{0x89},
                                     std::byte{0x9A}, std::byte{0x4C}, std::byte{0x69},
                                     std::byte{0x76}, std::byte{0x65}};
constexpr StateBytes kCleanState = {std::byte{0xC5}, std::byte{0xE0}, std::byte{0x1F},
                                    std::byte{0x0C}, std::byte{0x3A}, std::byte{0x1F},
                                    std::byte{0xE0}, std::byte{0xF3}};

constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kNumberAt = 16;
constexpr std::size_t kKeyAt = 16;
constexpr std::size_t kBytesAt = 32;
constexpr std::size_t kTagAt = 40;
constexpr std::size_t kChecksumAt = 48;

/// Of an entry header, its state left out, and of where it stands.
Hash128 entry_checksum(std::uint64_t number, std::uint64_t offset,
                       std::span<const std::byte> bytes) {
  std::array<std::byte, kChecksumAt + 8> covered{};
  std::memcpy(covered.data(), bytes.data(), kChecksumAt);
  std::memcpy(covered.data() + kStateAt, &number, sizeof(number));
  std::memcpy(covered.data() + kChecksumAt, &offset, sizeof(offset));
  return xxh3_128(covered);
}

}  // namespace

std::uint64_t record_tag(std::span<const std::byte> record) {
  return load_field<std::uint64_t>(record, record_format::kHeaderChecksumAt);
}

std::string segment_name(std::uint64_t number) { return fmt::format("{:016x}.isseg", number); }

std::optional<std::uint64_t> segment_number(std::string_view name) {
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number, 16);
  if (parsed.ec != std::errc() || segment_name(number) != name) {
    return std::nullopt;
  }
  return number;
}

HeaderBytes encode_segment_header(std::uint64_t number) {
  HeaderBytes out{};
  store_field(out.data(), 0, kSegmentMagic);
  store_field(out.data(), kVersionAt, kVersion);
  store_field(out.data(), kNumberAt, number);
  store_field(out.data(), kChecksumAt, xxh3_128(std::span(out).first(kChecksumAt)).bytes);
  return out;
}

Status check_segment_header(std::uint64_t number, std::span<const std::byte> bytes) {
  if (std::memcmp(bytes.data(), kSegmentMagic, sizeof(kSegmentMagic)) != 0) {
    return data_loss("segment magic: not a segment");
  }
  if (xxh3_128(bytes.first(kChecksumAt)) != load_field<Hash128>(bytes, kChecksumAt)) {
    return data_loss("segment header: checksum does not match");
  }
  if (load_field<std::uint32_t>(bytes, kVersionAt) != kVersion) {
    return data_loss("segment version: unknown");
  }
  if (load_field<std::uint64_t>(bytes, kNumberAt) != number) {
    return data_loss("segment number: not that of the file's name");
  }
  return Status();
}

HeaderBytes encode_entry_header(std::uint64_t number, std::uint64_t offset,
                                const EntryHeader& header) {
  HeaderBytes out{};
  store_field(out.data(), 0, kEntryMagic);
  store_field(out.data(), kStateAt, encode_state(header.state));
  store_field(out.data(), kKeyAt, header.key.value.bytes);
  store_field(out.data(), kBytesAt, header.bytes);
  store_field(out.data(), kTagAt, header.tag);
  store_field(out.data(), kChecksumAt, entry_checksum(number, offset, out).bytes);
  return out;
}

std::optional<EntryHeader> decode_entry_header(std::uint64_t number, std::uint64_t offset,
                                               std::span<const std::byte> bytes) {
  if (std::memcmp(bytes.data(), kEntryMagic, sizeof(kEntryMagic)) != 0 ||
      entry_checksum(number, offset, bytes) != load_field<Hash128>(bytes, kChecksumAt)) {
    return std::nullopt;
  }
  EntryHeader header;
  header.key.value = load_field<Hash128>(bytes, kKeyAt);
  header.bytes = load_field<std::uint64_t>(bytes, kBytesAt);
  header.tag = load_field<std::uint64_t>(bytes, kTagAt);
  if (header.bytes < kEntryHeaderBytes || header.bytes % kAlignment != 0 ||
      header.bytes > kEntryHeaderBytes + record_format::kMaxRecordBytes) {
    return std::nullopt;
  }
  const auto state = load_field<StateBytes>(bytes, kStateAt);
  header.state = state == kLiveState    ? EntryState::kLive
                 : state == kCleanState ? EntryState::kClean
                                        : EntryState::kErased;
  return header;
}

StateBytes encode_state(EntryState state) {
  switch (state) {
    case EntryState::kLive:
      return kLiveState;
    case EntryState::kClean:
      return kCleanState;
    case EntryState::kErased:
      break;
  }
  return kErasedState;
}

}  // namespace inferscale::segment_format
