#include "base/hash.h"
#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"

namespace inferscale {

std::size_t codec_element_bytes(KvCodec codec) {
  switch (codec) {
    case KvCodec::kF16:
    case KvCodec::kBf16:
      return 2;
    case KvCodec::kF32:
      return 4;
    case KvCodec::kQ8:
    case KvCodec::kFp8E4m3:
      return 1;
    case KvCodec::kQ4:
      break;
  }
  return 0;
}

bool codec_is_known(KvCodec codec) {
  return codec_element_bytes(codec) != 0 || codec == KvCodec::kQ4;
}

std::size_t codec_head_bytes(KvCodec codec, std::size_t head_dim) {
  return codec == KvCodec::kQ4 ? (head_dim + 1) / 2 : head_dim * codec_element_bytes(codec);
}

bool codec_is_scaled(KvCodec codec) {
  return codec == KvCodec::kQ8 || codec == KvCodec::kFp8E4m3 || codec == KvCodec::kQ4;
}

KvCodec codec_for_context(KvCodec wanted, ContextKind kind) {
  const bool may_begin =
      kind == ContextKind::kPrefix || kind == ContextKind::kAlone || kind == ContextKind::kParked;
  return wanted == KvCodec::kQ4 && may_begin ? KvCodec::kQ8 : wanted;
}

const char* codec_name(KvCodec codec) {
  switch (codec) {
    case KvCodec::kF16:
      return "f16";
    case KvCodec::kF32:
      return "f32";
    case KvCodec::kBf16:
      return "bf16";
    case KvCodec::kQ8:
      return "q8";
    case KvCodec::kFp8E4m3:
      return "fp8_e4m3";
    case KvCodec::kQ4:
      return "q4";
  }
  return "?";
}

std::optional<KvCodec> codec_from_name(std::string_view name) {
  for (const KvCodec codec : {KvCodec::kF16, KvCodec::kF32, KvCodec::kBf16, KvCodec::kQ8,
                              KvCodec::kFp8E4m3, KvCodec::kQ4}) {
    if (name == codec_name(codec)) {
      return codec;
    }
  }
  return std::nullopt;
}

std::size_t part_token_bytes(const KvShape& shape, KvCodec codec, KvPart part) {
  switch (part) {
    case KvPart::kK:
      return shape.n_kv_heads * codec_head_bytes(codec, shape.head_dim_k);
    case KvPart::kV:
      return shape.n_kv_heads * codec_head_bytes(codec, shape.head_dim_v);
    case KvPart::kKScales:
    case KvPart::kVScales:
      return codec_is_scaled(codec) ? shape.n_kv_heads * sizeof(float) : 0;
    case KvPart::kKMeans:
      break;
  }
  return 0;
}

std::size_t part_bytes(const KvShape& shape, KvCodec codec, KvPart part, std::size_t n_tokens) {
  if (part == KvPart::kKMeans) {
    return codec == KvCodec::kQ4 ? shape.k_elements() * codec_element_bytes(KvCodec::kF16) : 0;
  }
  return n_tokens * part_token_bytes(shape, codec, part);
}

std::size_t kv_token_bytes(const KvShape& shape, KvCodec codec) {
  std::size_t bytes = 0;
  for (const KvPart part : kTokenParts) {
    bytes += part_token_bytes(shape, codec, part);
  }
  return shape.n_layers * bytes;
}

const char* context_kind_name(ContextKind kind) {
  switch (kind) {
    case ContextKind::kPrefix:
      return "prefix";
    case ContextKind::kHeader:
      return "header";
    case ContextKind::kTurns:
      return "turns";
    case ContextKind::kPrimer:
      return "primer";
    case ContextKind::kNames:
      return "names";
    case ContextKind::kWindow:
      return "window";
    case ContextKind::kNear:
      return "near";
    case ContextKind::kLog:
      return "log";
    case ContextKind::kSource:
      return "source";
    case ContextKind::kNearAny:
      return "near_any";
    case ContextKind::kChain:
      return "chain";
    case ContextKind::kAlone:
      return "alone";
    case ContextKind::kParked:
      return "parked";
  }
  return "unknown";
}

const char* miss_reason_name(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kAbsent:
      return "record_missing";
    case MissReason::kEvicted:
      return "record_evicted";
    case MissReason::kErased:
      return "record_erased";
    case MissReason::kChecksum:
      return "bad_checksum";
    case MissReason::kWrongModel:
      return "wrong_fingerprint";
    case MissReason::kWrongScope:
      return "wrong_scope";
    case MissReason::kWrongTokens:
      return "wrong_tokens";
    case MissReason::kNoRoom:
      return "host_budget_full";
    case MissReason::kSlowLoad:
      return "load_slower_than_prefill";
    case MissReason::kNoDeviceRoom:
      return "device_budget_full";
    case MissReason::kDeviceFailed:
      return "device_failed";
    case MissReason::kWrongContext:
      return "wrong_context";
  }
  return "unknown";
}

RecordKey make_record_key(std::span<const std::byte> installation_secret, const RecordMeta& meta,
                          std::span<const TokenId> token_ids) {
  HashMessage message;
  message.add_hash(meta.scope)
      .add_hash(meta.model_fingerprint)
      .add_hash(meta.context_id)
      .add_tokens(token_ids);
  return RecordKey{hmac_sha256_128(installation_secret, message.bytes())};
}

Hash128 make_context_id(ContextKind kind, std::span<const TokenId> attended_tokens,
                        std::span<const RecordKey> injected) {
  HashMessage message;
  message.add_u32(static_cast<std::uint32_t>(kind)).add_tokens(attended_tokens);
  message.add_u64(injected.size());
  for (const RecordKey& key : injected) {
    message.add_hash(key.value);
  }
  return sha256_128(message.bytes());
}

Hash128 token_hash(std::span<const TokenId> token_ids) {
  return xxh3_128(std::as_bytes(token_ids));  // little endian is asserted in record_header.cc
}

}  // namespace inferscale
