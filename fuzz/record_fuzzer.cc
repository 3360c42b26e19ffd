#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "inferscale/kv_record.h"
#include "kv/record_format.h"

/// Any bytes may stand where a record is read: they are refused, or they are a record that reads
/// back whole and that the encoder would have made.

namespace {

using inferscale::Hash128;
using inferscale::Record;
using inferscale::RecordBuilder;
namespace format = inferscale::record_format;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void check_layers(const Record& record) {
  const inferscale::RecordMeta& meta = record.meta();
  const std::byte* end = record.bytes().data() + record.bytes().size();
  for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
    require(reinterpret_cast<std::uintptr_t>(record.layer_k(layer)) % format::kLayerAlignment == 0);
    require(record.layer_v(layer) > record.layer_k(layer));
    for (const inferscale::KvPart part : inferscale::kKvParts) {
      const std::size_t bytes =
          inferscale::part_bytes(meta.shape, meta.codec, part, record.n_tokens());
      require(record.layer_part(layer, part) + bytes <= end);
    }
  }
}

void check_encoder_agrees(const Record& record) {
  auto created = RecordBuilder::create(record.meta(), record.token_ids());
  require(created.ok());
  RecordBuilder builder = std::move(created).value();
  const inferscale::RecordMeta& meta = record.meta();
  for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
    for (const inferscale::KvPart part : inferscale::kKvParts) {
      std::memcpy(builder.layer_part(layer, part), record.layer_part(layer, part),
                  inferscale::part_bytes(meta.shape, meta.codec, part, record.n_tokens()));
    }
  }
  require(builder.check_scales().ok());
  const auto again = std::move(builder).seal();
  require(std::equal(again->bytes().begin(), again->bytes().end(), record.bytes().begin(),
                     record.bytes().end()));
}

void check(std::span<const std::byte> bytes) {
  const auto parsed = Record::parse(bytes);
  if (!parsed.ok()) {
    require(parsed.status().code() == inferscale::StatusCode::kDataLoss);
    return;
  }
  const Record& record = **parsed;
  require(record.verify().ok());
  require(inferscale::record_bytes(record.meta(), record.n_tokens()) == bytes.size());
  check_layers(record);
  check_encoder_agrees(record);
}

void store(std::vector<std::byte>& bytes, std::size_t offset, const Hash128& hash) {
  std::memcpy(bytes.data() + offset, hash.bytes.data(), hash.bytes.size());
}

/// Without this no mutation would ever get past the checksums.
void make_checksums_match(std::vector<std::byte>& bytes) {
  std::memcpy(bytes.data(), format::kMagic, sizeof(format::kMagic));
  std::memcpy(bytes.data() + format::kVersionAt, &format::kVersion, sizeof(format::kVersion));
  const auto body = std::span<const std::byte>(bytes).subspan(format::kHeaderBytes);
  std::uint32_t n_tokens = 0;
  std::memcpy(&n_tokens, bytes.data() + format::kTokenCountAt, sizeof(n_tokens));
  const std::uint64_t token_bytes = std::uint64_t{n_tokens} * 4;
  store(bytes, format::kTokenHashAt,
        inferscale::xxh3_128(body.first(std::min<std::uint64_t>(token_bytes, body.size()))));
  store(bytes, format::kBodyChecksumAt, inferscale::xxh3_128(body));
  store(bytes, format::kHeaderChecksumAt,
        inferscale::xxh3_128(std::span(bytes).first(format::kHeaderChecksumAt)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check(bytes);
  if (size >= format::kHeaderBytes) {
    std::vector<std::byte> forged(bytes.begin(), bytes.end());
    make_checksums_match(forged);
    check(forged);
  }
  return 0;
}
