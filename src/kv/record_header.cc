#include "kv/record_header.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/hash.h"
#include "kv/byte_fields.h"
#include "kv/record_format.h"

namespace inferscale {
namespace {

namespace format = record_format;

std::uint64_t align_up(std::uint64_t size, std::uint64_t alignment = format::kLayerAlignment) {
  return (size + alignment - 1) / alignment * alignment;
}

bool known_codec(std::uint32_t value) {
  return value <= 0xFF && codec_is_known(static_cast<KvCodec>(value));
}

bool known_context_kind(std::uint32_t value) {
  return value <= static_cast<std::uint32_t>(ContextKind::kParked);
}

/// What must hold before any other field may be believed.
Status check_envelope(std::span<const std::byte> bytes) {
  if (bytes.size() < format::kHeaderBytes) {
    return data_loss(fmt::format("record header: {} bytes instead of at least {}", bytes.size(),
                                 format::kHeaderBytes));
  }
  if (std::memcmp(bytes.data() + format::kMagicAt, format::kMagic, sizeof(format::kMagic)) != 0) {
    return data_loss("record magic: not a record");
  }
  const auto version = load_field<std::uint32_t>(bytes, format::kVersionAt);
  if (version != format::kVersion) {
    return data_loss(fmt::format("record version: {} instead of {}", version, format::kVersion));
  }
  if (xxh3_128(bytes.first(format::kHeaderChecksumAt)) !=
      load_field<Hash128>(bytes, format::kHeaderChecksumAt)) {
    return data_loss("record header: checksum does not match");
  }
  return Status();
}

}  // namespace

Status check_record_limits(const RecordMeta& meta, std::uint32_t n_tokens) {
  if (!known_codec(static_cast<std::uint32_t>(meta.codec))) {
    return invalid_argument(
        fmt::format("codec: {} is not one of f16 (1), f32 (2), bf16 (3), q8 (4), "
                    "fp8_e4m3 (5), q4 (6)",
                    static_cast<unsigned>(meta.codec)));
  }
  if (!known_context_kind(static_cast<std::uint32_t>(meta.context_kind))) {
    return invalid_argument(fmt::format("context kind: {} is not within 0..7",
                                        static_cast<unsigned>(meta.context_kind)));
  }
  INFERSCALE_RETURN_IF_ERROR(meta.shape.validate());
  if (meta.shard_count < 1 || meta.shard_count > format::kMaxShards ||
      meta.shard_index >= meta.shard_count) {
    return invalid_argument(fmt::format("shard: {} of {} is not within 1..{}", meta.shard_index,
                                        meta.shard_count, format::kMaxShards));
  }
  if (meta.context_tokens > format::kMaxTokens) {
    return invalid_argument(fmt::format("context tokens: {} is not within 0..{}",
                                        meta.context_tokens, format::kMaxTokens));
  }
  if (n_tokens < 1 || n_tokens > format::kMaxTokens) {
    return invalid_argument(
        fmt::format("tokens: {} is not within 1..{}", n_tokens, format::kMaxTokens));
  }
  return Status();
}

RecordLayout record_layout(const RecordMeta& meta, std::uint32_t n_tokens) {
  // The largest legal record has 2^20 tokens of 2^10 heads of 2^10 f32 elements, twice, in 2^10
  // layers: 2^53 bytes.
  RecordLayout layout;
  layout.first_layer_offset = align_up(format::kHeaderBytes + std::uint64_t{n_tokens} * 4);
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < std::size(kKvParts); ++i) {
    layout.part_bytes[i] = part_bytes(meta.shape, meta.codec, kKvParts[i], n_tokens);
    if (kKvParts[i] == KvPart::kKScales && layout.part_bytes[i] > 0) {
      end = align_up(end, format::kScalesAlignment);
    }
    layout.part_offsets[i] = end;
    end += layout.part_bytes[i];
  }
  layout.layer_stride = align_up(end);
  layout.payload_bytes = meta.shape.n_layers * layout.layer_stride;
  layout.total_bytes = layout.first_layer_offset + layout.payload_bytes;
  return layout;
}

Result<RecordHeader> decode_record_header(std::span<const std::byte> bytes) {
  INFERSCALE_RETURN_IF_ERROR(check_envelope(bytes));
  const auto codec = load_field<std::uint32_t>(bytes, format::kCodecAt);
  const auto kind = load_field<std::uint32_t>(bytes, format::kContextKindAt);
  // Before they are narrowed to their enums.
  if (!known_codec(codec) || !known_context_kind(kind)) {
    return data_loss(
        fmt::format("record header: codec {} or context kind {} unknown", codec, kind));
  }
  RecordHeader header;
  RecordMeta& meta = header.meta;
  meta.model_fingerprint = load_field<Hash128>(bytes, format::kFingerprintAt);
  meta.context_id = load_field<Hash128>(bytes, format::kContextIdAt);
  meta.scope = load_field<Hash128>(bytes, format::kScopeAt);
  meta.context_kind = static_cast<ContextKind>(kind);
  meta.codec = static_cast<KvCodec>(codec);
  meta.shape.n_layers = load_field<std::uint32_t>(bytes, format::kLayerCountAt);
  meta.shape.n_kv_heads = load_field<std::uint32_t>(bytes, format::kHeadCountAt);
  meta.shape.head_dim_k = load_field<std::uint32_t>(bytes, format::kHeadDimKAt);
  meta.shape.head_dim_v = load_field<std::uint32_t>(bytes, format::kHeadDimVAt);
  meta.context_tokens = load_field<std::uint32_t>(bytes, format::kContextTokensAt);
  meta.shard_index = load_field<std::uint32_t>(bytes, format::kShardIndexAt);
  meta.shard_count = load_field<std::uint32_t>(bytes, format::kShardCountAt);
  header.n_tokens = load_field<std::uint32_t>(bytes, format::kTokenCountAt);
  header.token_hash = load_field<Hash128>(bytes, format::kTokenHashAt);
  header.body_checksum = load_field<Hash128>(bytes, format::kBodyChecksumAt);
  if (const Status limits = check_record_limits(meta, header.n_tokens); !limits.ok()) {
    return data_loss("record header: " + limits.message());
  }
  const auto payload_bytes = load_field<std::uint64_t>(bytes, format::kPayloadBytesAt);
  const RecordLayout layout = record_layout(meta, header.n_tokens);
  if (payload_bytes != layout.payload_bytes || layout.total_bytes > format::kMaxRecordBytes) {
    return data_loss(fmt::format("record header: {} payload bytes do not fit its shape ({})",
                                 payload_bytes, layout.payload_bytes));
  }
  return header;
}

void encode_record_header(const RecordHeader& header, std::byte* out) {
  const RecordMeta& meta = header.meta;
  store_field(out, format::kMagicAt, format::kMagic);
  store_field(out, format::kVersionAt, format::kVersion);
  store_field(out, format::kCodecAt, static_cast<std::uint32_t>(meta.codec));
  store_field(out, format::kContextKindAt, static_cast<std::uint32_t>(meta.context_kind));
  store_field(out, format::kFingerprintAt, meta.model_fingerprint.bytes);
  store_field(out, format::kContextIdAt, meta.context_id.bytes);
  store_field(out, format::kScopeAt, meta.scope.bytes);
  store_field(out, format::kTokenHashAt, header.token_hash.bytes);
  store_field(out, format::kTokenCountAt, header.n_tokens);
  store_field(out, format::kLayerCountAt, meta.shape.n_layers);
  store_field(out, format::kHeadCountAt, meta.shape.n_kv_heads);
  store_field(out, format::kHeadDimKAt, meta.shape.head_dim_k);
  store_field(out, format::kHeadDimVAt, meta.shape.head_dim_v);
  store_field(out, format::kShardIndexAt, meta.shard_index);
  store_field(out, format::kShardCountAt, meta.shard_count);
  store_field(out, format::kContextTokensAt, meta.context_tokens);
  store_field(out, format::kPayloadBytesAt, record_layout(meta, header.n_tokens).payload_bytes);
  store_field(out, format::kBodyChecksumAt, header.body_checksum.bytes);
  const Hash128 checksum = xxh3_128(std::span(out, format::kHeaderChecksumAt));
  store_field(out, format::kHeaderChecksumAt, checksum.bytes);
}

}  // namespace inferscale
