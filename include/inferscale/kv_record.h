#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "inferscale/export.h"
#include "inferscale/model_spec.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// Element types of records and, but for the scaled ones, of caches. Values are written to disk:
/// never renumber.
enum class KvCodec : std::uint8_t {
  kF16 = 1,
  kF32 = 2,
  kBf16 = 3,
  kQ8 = 4,       ///< scaled: an int8 times the scale of its head
  kFp8E4m3 = 5,  ///< scaled: a float of 4 exponent and 3 mantissa bits, without infinities
  kQ4 = 6,       ///< scaled: one of 16 levels, two in a byte, of a head that was transformed; keys
                 ///< without their record's means. Of records alone, never of pages
};

[[nodiscard]] INFERSCALE_API bool codec_is_known(KvCodec codec);
/// 1, 2 or 4; 0 of kQ4, whose elements take less than a byte, and of unknown values.
[[nodiscard]] INFERSCALE_API std::size_t codec_element_bytes(KvCodec codec);
/// Bytes of a head's elements, without its scale: of kQ4 half as many as elements, rounded up.
/// Unknown values give 0.
[[nodiscard]] INFERSCALE_API std::size_t codec_head_bytes(KvCodec codec, std::size_t head_dim);
/// Whether each head of each token has a scale, an f32, that its elements are multiplied with: one
/// for its key, one for its value. Records may have such a codec, caches may not.
[[nodiscard]] INFERSCALE_API bool codec_is_scaled(KvCodec codec);
/// "f16", "f32", "bf16", "q8", "fp8_e4m3" or "q4"; "?" for unknown values.
[[nodiscard]] INFERSCALE_API const char* codec_name(KvCodec codec);
/// The codec of that name, if there is one.
[[nodiscard]] INFERSCALE_API std::optional<KvCodec> codec_from_name(std::string_view name);

/// Which encode context made a record (architecture §4). Values are written to disk: never
/// renumber.
enum class ContextKind : std::uint8_t {
  kPrefix = 0,  ///< the tokens of a prompt's own start (a header record), nothing before them
  kHeader = 1,
  kTurns = 2,
  kPrimer = 3,
  kNames = 4,
  kWindow = 5,
  kNear = 6,
  kLog = 7,
  kSource = 8,   ///< an experiment; nothing makes it any more
  kNearAny = 9,  ///< likewise
  kChain = 10,
  kAlone = 11,
  kParked = 12,  ///< rows of a conversation, not of a fact; an engine forgets them soon
};
[[nodiscard]] INFERSCALE_API const char* context_kind_name(ContextKind kind);
/// The codec of a record of such a context where `wanted` is asked for: kQ8 instead of kQ4 where
/// the record may begin a sequence (kPrefix, kAlone, kParked), whose first token's outliers 16
/// levels cannot hold.
[[nodiscard]] INFERSCALE_API KvCodec codec_for_context(KvCodec wanted, ContextKind kind);

/// What a layer of a record consists of, in this order.
enum class KvPart : std::uint8_t {
  kK,        ///< of each token [n_kv_heads][head_dim_k] elements
  kV,        ///< of each token [n_kv_heads][head_dim_v] elements
  kKScales,  ///< of each token [n_kv_heads] floats, of scaled codecs
  kVScales,
  kKMeans,  ///< of the record [n_kv_heads][head_dim_k] f16, of kQ4: what its keys have in common
};
inline constexpr KvPart kKvParts[] = {KvPart::kK, KvPart::kV, KvPart::kKScales, KvPart::kVScales,
                                      KvPart::kKMeans};
/// Those in which every token has bytes of its own: the first ones.
inline constexpr std::span<const KvPart> kTokenParts = std::span(kKvParts).first(4);

/// Bytes of a part of one layer of a record of `n_tokens` tokens; 0 of what the codec does not
/// have. All sizes of records and pages follow from it.
[[nodiscard]] INFERSCALE_API std::size_t part_bytes(const KvShape& shape, KvCodec codec,
                                                    KvPart part, std::size_t n_tokens);
/// What of it each token takes: 0 of kKMeans.
[[nodiscard]] INFERSCALE_API std::size_t part_token_bytes(const KvShape& shape, KvCodec codec,
                                                          KvPart part);
/// Bytes of a token in all parts of all layers, without padding and means.
[[nodiscard]] INFERSCALE_API std::size_t kv_token_bytes(const KvShape& shape, KvCodec codec);

/// What a record says about itself. See docs/format.md for the bytes.
struct RecordMeta {
  Hash128 model_fingerprint;
  Hash128 context_id;  ///< pins what the tokens attended to while being encoded
  Hash128 scope;       ///< scope_hash of the owner
  ContextKind context_kind = ContextKind::kHeader;
  KvCodec codec = KvCodec::kF16;
  KvShape shape;  ///< n_kv_heads is that of this shard
  std::uint32_t shard_index = 0;
  std::uint32_t shard_count = 1;
  /// How many tokens stood before the record's own while it was encoded: with these, what having it
  /// again would cost. Bookkeeping: decides what is evicted first, never what is served.
  std::uint32_t context_tokens = 0;
  friend bool operator==(const RecordMeta&, const RecordMeta&) = default;
};

/// An immutable, checked record: keys without position and values of a run of tokens, layer-major.
/// Layout and checksums: docs/format.md. Safe to share between threads; owns its bytes.
/// A *description* says what a record is while its keys and values lie elsewhere, with an engine
/// that keeps its own: it is planned with like any record, and refused wherever bytes are needed.
class INFERSCALE_API Record {
 public:
  /// A description. Errors: those of RecordBuilder::create.
  [[nodiscard]] static Result<std::shared_ptr<const Record>> describe(
      const RecordMeta& meta, std::span<const TokenId> token_ids);

  /// Takes `bytes` (the whole encoded record) after checking magic, version, sizes and all
  /// checksums. Errors: kDataLoss that says which check failed. Never reads outside `bytes`.
  [[nodiscard]] static Result<std::shared_ptr<const Record>> parse(
      std::span<const std::byte> bytes);

  /// As `parse`, but `fill` puts the `size` bytes straight where they stay, so that they are not
  /// copied. Errors: as `parse`, those of `fill`, kResourceExhausted (memory).
  [[nodiscard]] static Result<std::shared_ptr<const Record>> read(
      std::uint64_t size, const std::function<Status(std::span<std::byte>)>& fill);

  [[nodiscard]] const RecordMeta& meta() const { return meta_; }
  [[nodiscard]] std::span<const TokenId> token_ids() const { return token_ids_; }
  [[nodiscard]] std::uint32_t n_tokens() const {
    return static_cast<std::uint32_t>(token_ids_.size());
  }
  /// False for a description.
  [[nodiscard]] bool has_payload() const { return data_ != nullptr; }
  /// REQUIRES of what follows, but for `verify` and `wipe`: has_payload().
  /// K of a layer: [n_tokens][n_kv_heads] heads of head_dim_k elements of meta().codec, 64-byte
  /// aligned, position-free.
  [[nodiscard]] const std::byte* layer_k(std::uint32_t layer) const;
  /// V of a layer: [n_tokens][n_kv_heads] heads of head_dim_v elements of meta().codec.
  [[nodiscard]] const std::byte* layer_v(std::uint32_t layer) const;
  /// Any part of a layer: part_bytes of it. Scales are aligned as floats are.
  [[nodiscard]] const std::byte* layer_part(std::uint32_t layer, KvPart part) const;
  /// The encoded form, as written to a tier; empty for a description.
  [[nodiscard]] std::span<const std::byte> bytes() const;
  /// Recomputes the checksums over the bytes as they are in memory now. Errors: kDataLoss (a
  /// description has none).
  [[nodiscard]] Status verify() const;

  /// Test hook and erase path: overwrites everything with zeros, so that `verify` fails from then
  /// on. The destructor does the same. REQUIRES: nobody else reads the record.
  void wipe() const;

  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

 private:
  friend class RecordBuilder;
  Record() = default;
  RecordMeta meta_;
  std::vector<TokenId> token_ids_;
  std::byte* data_ = nullptr;  // 64-byte aligned, owned
  std::size_t size_ = 0;
  std::size_t first_layer_offset_ = 0;
  std::array<std::size_t, std::size(kKvParts)> part_offsets_{};  // from a layer's start
  std::size_t layer_stride_ = 0;
};

/// Allocates a record, lets `kv_capture` fill its layers in place, then seals it with its
/// checksums. One thread at a time.
class INFERSCALE_API RecordBuilder {
 public:
  /// Errors: kInvalidArgument (no tokens, over 1,048,576 tokens, bad shape or shard),
  /// kResourceExhausted (memory).
  [[nodiscard]] static Result<RecordBuilder> create(const RecordMeta& meta,
                                                    std::span<const TokenId> token_ids);

  [[nodiscard]] const RecordMeta& meta() const { return record_->meta_; }
  [[nodiscard]] std::uint32_t n_tokens() const { return record_->n_tokens(); }
  [[nodiscard]] std::byte* layer_k(std::uint32_t layer);
  [[nodiscard]] std::byte* layer_v(std::uint32_t layer);
  [[nodiscard]] std::byte* layer_part(std::uint32_t layer, KvPart part);
  /// Whether every head of n_layers layers (0: up to the last) could be written in a scaled codec;
  /// other codecs hold anything. Errors: kInvalidArgument that names the first head that is
  /// infinite, NaN or too large: the record must not be sealed.
  [[nodiscard]] Status check_scales(std::uint32_t first_layer = 0,
                                    std::uint32_t n_layers = 0) const;
  /// Computes the checksums and gives the record away; the builder is empty afterwards.
  [[nodiscard]] std::shared_ptr<const Record> seal() &&;

 private:
  RecordBuilder() = default;
  std::shared_ptr<Record> record_;
};

/// Bytes of an encoded record with `n_tokens` tokens, header and padding included; 0 when there can
/// be no such record (RecordBuilder::create would refuse it).
[[nodiscard]] INFERSCALE_API std::size_t record_bytes(const RecordMeta& meta,
                                                      std::uint32_t n_tokens);

/// HMAC-SHA-256/128(secret, scope ‖ fingerprint ‖ context id ‖ token ids), each part
/// length-prefixed: a name that cannot be guessed without the installation secret.
struct RecordKey {
  Hash128 value;
  friend auto operator<=>(const RecordKey&, const RecordKey&) = default;
  friend bool operator==(const RecordKey&, const RecordKey&) = default;
};
[[nodiscard]] INFERSCALE_API RecordKey
make_record_key(std::span<const std::byte> installation_secret, const RecordMeta& meta,
                std::span<const TokenId> token_ids);

/// SHA-256/128(kind ‖ token ids attended to as text ‖ keys of the records injected).
[[nodiscard]] INFERSCALE_API Hash128 make_context_id(ContextKind kind,
                                                     std::span<const TokenId> attended_tokens,
                                                     std::span<const RecordKey> injected);

/// XXH3-128 of the token ids as little-endian u32; stored in the record's header.
[[nodiscard]] INFERSCALE_API Hash128 token_hash(std::span<const TokenId> token_ids);

}  // namespace inferscale

template <>
struct std::hash<inferscale::RecordKey> {
  std::size_t operator()(const inferscale::RecordKey& key) const noexcept {
    return std::hash<inferscale::Hash128>{}(key.value);
  }
};
