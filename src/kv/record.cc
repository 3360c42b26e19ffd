#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "inferscale/kv_record.h"
#include "kernels/quantized.h"
#include "kv/record_format.h"
#include "kv/record_header.h"

namespace inferscale {
namespace {

namespace format = record_format;
constexpr std::align_val_t kAlignment{format::kLayerAlignment};

std::byte* allocate_aligned(std::uint64_t size) {
  return static_cast<std::byte*>(::operator new(size, kAlignment, std::nothrow));
}

Status no_memory(std::uint64_t size) {
  return resource_exhausted(fmt::format("not enough memory for a record of {} bytes", size));
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

/// Padding is a fixed value, so that equal content means equal bytes and nothing can hide in it.
bool padding_is_zero(std::span<const std::byte> bytes, const RecordHeader& header) {
  const RecordLayout layout = record_layout(header.meta, header.n_tokens);
  const std::uint64_t tokens_end = format::kHeaderBytes + std::uint64_t{header.n_tokens} * 4;
  if (!all_zero(bytes.subspan(tokens_end, layout.first_layer_offset - tokens_end))) {
    return false;
  }
  for (std::uint64_t layer = 0; layer < header.meta.shape.n_layers; ++layer) {
    const std::uint64_t start = layout.first_layer_offset + layer * layout.layer_stride;
    std::uint64_t used = 0;
    for (std::size_t i = 0; i < std::size(kKvParts); ++i) {
      if (!all_zero(bytes.subspan(start + used, layout.part_offsets[i] - used))) {
        return false;
      }
      used = layout.part_offsets[i] + layout.part_bytes[i];
    }
    if (!all_zero(bytes.subspan(start + used, layout.layer_stride - used))) {
      return false;
    }
  }
  return true;
}

/// The first float that is no scale, counted from the part's first.
std::optional<std::size_t> find_bad_scale(KvCodec codec, std::span<const std::byte> part) {
  for (std::size_t i = 0; i < part.size() / sizeof(float); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, part.data() + i * sizeof(bits), sizeof(bits));
    if (!kernels::is_scale(codec, bits)) {
      return i;
    }
  }
  return std::nullopt;
}

/// The first mean that is infinite or NaN, counted from the part's first.
std::optional<std::size_t> find_bad_mean(std::span<const std::byte> part) {
  for (std::size_t i = 0; i < part.size() / sizeof(std::uint16_t); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, part.data() + i * sizeof(bits), sizeof(bits));
    if (!kernels::is_mean(bits)) {
      return i;
    }
  }
  return std::nullopt;
}

/// NaN, or bits of kQ4 that belong to no element.
bool has_bad_elements(KvCodec codec, std::size_t head_dim, std::span<const std::byte> part) {
  if (codec == KvCodec::kFp8E4m3) {
    return !part.empty() && (std::memchr(part.data(), 0x7F, part.size()) != nullptr ||
                             std::memchr(part.data(), 0xFF, part.size()) != nullptr);
  }
  if (codec == KvCodec::kQ4 && head_dim % 2 == 1) {
    const std::size_t head = codec_head_bytes(codec, head_dim);
    for (std::size_t end = head; end <= part.size(); end += head) {
      if ((part[end - 1] >> 4) != std::byte{0}) {
        return true;
      }
    }
  }
  return false;
}

/// Whether no scale, no mean and no element can spoil a head.
bool scales_are_sound(std::span<const std::byte> bytes, const RecordHeader& header) {
  const RecordLayout layout = record_layout(header.meta, header.n_tokens);
  for (std::uint64_t layer = 0; layer < header.meta.shape.n_layers; ++layer) {
    const std::uint64_t start = layout.first_layer_offset + layer * layout.layer_stride;
    const auto part_of = [&](KvPart part) {
      const auto i = static_cast<std::size_t>(part);
      return bytes.subspan(start + layout.part_offsets[i], layout.part_bytes[i]);
    };
    const KvCodec codec = header.meta.codec;
    const KvShape& shape = header.meta.shape;
    if (find_bad_scale(codec, part_of(KvPart::kKScales)) ||
        find_bad_scale(codec, part_of(KvPart::kVScales)) ||
        find_bad_mean(part_of(KvPart::kKMeans)) ||
        has_bad_elements(codec, shape.head_dim_k, part_of(KvPart::kK)) ||
        has_bad_elements(codec, shape.head_dim_v, part_of(KvPart::kV))) {
      return false;
    }
  }
  return true;
}

/// Every check that can be made on the bytes of a whole record.
Result<RecordHeader> check_record(std::span<const std::byte> bytes) {
  Result<RecordHeader> header = decode_record_header(bytes);
  if (!header.ok()) {
    return header;
  }
  const std::uint64_t expected = record_layout(header->meta, header->n_tokens).total_bytes;
  if (bytes.size() != expected) {
    return data_loss(fmt::format("record size: {} bytes instead of {}", bytes.size(), expected));
  }
  const auto body = bytes.subspan(format::kHeaderBytes);
  if (xxh3_128(body) != header->body_checksum) {
    return data_loss("record token ids or payload: checksum does not match");
  }
  if (xxh3_128(body.first(std::size_t{header->n_tokens} * 4)) != header->token_hash) {
    return data_loss("record token ids: hash does not match");
  }
  if (!padding_is_zero(bytes, *header)) {
    return data_loss("record padding: not zero");
  }
  if (codec_is_scaled(header->meta.codec) && !scales_are_sound(bytes, *header)) {
    return data_loss("record scales, means or elements: not finite or out of range");
  }
  return header;
}

/// Whether there can be a record of this.
Status check_contents(const RecordMeta& meta, std::span<const TokenId> token_ids) {
  if (token_ids.size() > format::kMaxTokens) {
    return invalid_argument(
        fmt::format("tokens: {} is not within 1..{}", token_ids.size(), format::kMaxTokens));
  }
  const auto n_tokens = static_cast<std::uint32_t>(token_ids.size());
  INFERSCALE_RETURN_IF_ERROR(check_record_limits(meta, n_tokens));
  const std::uint64_t size = record_layout(meta, n_tokens).total_bytes;
  return size > format::kMaxRecordBytes ? no_memory(size) : Status();
}

std::span<const std::byte> token_bytes(std::span<const std::byte> record, std::size_t n_tokens) {
  return record.subspan(format::kHeaderBytes, n_tokens * 4);
}

std::array<std::size_t, std::size(kKvParts)> part_offsets_of(const RecordLayout& layout) {
  std::array<std::size_t, std::size(kKvParts)> offsets{};
  std::copy(layout.part_offsets.begin(), layout.part_offsets.end(), offsets.begin());
  return offsets;
}

}  // namespace

Result<std::shared_ptr<const Record>> Record::parse(std::span<const std::byte> bytes) {
  return read(bytes.size(), [&](std::span<std::byte> out) {
    std::memcpy(out.data(), bytes.data(), out.size());
    return Status();
  });
}

Result<std::shared_ptr<const Record>> Record::read(
    std::uint64_t size, const std::function<Status(std::span<std::byte>)>& fill) {
  // Cheap refusal before memory is taken; the full check is made on the record's own bytes, which
  // nobody else can change between check and use.
  if (size < format::kHeaderBytes || size > format::kMaxRecordBytes) {
    return data_loss(fmt::format("record size: {} bytes is not within {}..{}", size,
                                 format::kHeaderBytes, format::kMaxRecordBytes));
  }
  try {
    std::shared_ptr<Record> record(new Record);
    record->data_ = allocate_aligned(size);
    if (record->data_ == nullptr) {
      return no_memory(size);
    }
    record->size_ = size;
    INFERSCALE_RETURN_IF_ERROR(fill(std::span(record->data_, record->size_)));
    INFERSCALE_ASSIGN_OR_RETURN(const RecordHeader header, check_record(record->bytes()));
    const RecordLayout layout = record_layout(header.meta, header.n_tokens);
    record->meta_ = header.meta;
    record->first_layer_offset_ = layout.first_layer_offset;
    record->part_offsets_ = part_offsets_of(layout);
    record->layer_stride_ = layout.layer_stride;
    record->token_ids_.resize(header.n_tokens);
    const auto tokens = token_bytes(record->bytes(), header.n_tokens);
    std::memcpy(record->token_ids_.data(), tokens.data(), tokens.size());
    return std::shared_ptr<const Record>(std::move(record));
  } catch (const std::bad_alloc&) {
    return no_memory(size);
  }
}

Result<std::shared_ptr<const Record>> Record::describe(const RecordMeta& meta,
                                                       std::span<const TokenId> token_ids) {
  INFERSCALE_RETURN_IF_ERROR(check_contents(meta, token_ids));
  try {
    std::shared_ptr<Record> record(new Record);
    record->meta_ = meta;
    record->token_ids_.assign(token_ids.begin(), token_ids.end());
    return std::shared_ptr<const Record>(std::move(record));
  } catch (const std::bad_alloc&) {
    return no_memory(token_ids.size_bytes());
  }
}

const std::byte* Record::layer_part(std::uint32_t layer, KvPart part) const {
  assert(has_payload());
  assert(layer < meta_.shape.n_layers);
  return data_ + first_layer_offset_ + layer * layer_stride_ +
         part_offsets_[static_cast<std::size_t>(part)];
}

const std::byte* Record::layer_k(std::uint32_t layer) const {
  return layer_part(layer, KvPart::kK);
}

const std::byte* Record::layer_v(std::uint32_t layer) const {
  return layer_part(layer, KvPart::kV);
}

std::span<const std::byte> Record::bytes() const { return {data_, size_}; }

Status Record::verify() const {
  INFERSCALE_ASSIGN_OR_RETURN(const RecordHeader header, check_record(bytes()));
  // What callers compare against requests are the decoded copies, so these must be sound too.
  if (header.meta != meta_ || header.n_tokens != n_tokens() ||
      std::memcmp(token_ids_.data(), token_bytes(bytes(), n_tokens()).data(),
                  token_ids_.size() * sizeof(TokenId)) != 0) {
    return data_loss("record in memory: fields differ from its bytes");
  }
  return Status();
}

void Record::wipe() const {
  // A write that the compiler may not drop, although the memory is freed next. The header goes too:
  // from the hash of a few token ids the ids can be guessed, and a record that consisted of zeros
  // must not verify afterwards.
  if (data_ != nullptr) {
    OPENSSL_cleanse(data_, size_);
  }
  if (!token_ids_.empty()) {
    OPENSSL_cleanse(const_cast<TokenId*>(token_ids_.data()), token_ids_.size() * sizeof(TokenId));
  }
}

// Wiping here, always, is what makes "erased" hold for leased records: whoever lets go last zeroes
// the bytes, whatever the store has forgotten by then, and freed memory never holds KV.
Record::~Record() {
  wipe();
  ::operator delete(data_, kAlignment);
}

Result<RecordBuilder> RecordBuilder::create(const RecordMeta& meta,
                                            std::span<const TokenId> token_ids) {
  INFERSCALE_RETURN_IF_ERROR(check_contents(meta, token_ids));
  const RecordLayout layout = record_layout(meta, static_cast<std::uint32_t>(token_ids.size()));
  try {
    RecordBuilder builder;
    builder.record_ = std::shared_ptr<Record>(new Record);
    Record& record = *builder.record_;
    record.meta_ = meta;
    record.token_ids_.assign(token_ids.begin(), token_ids.end());
    record.data_ = allocate_aligned(layout.total_bytes);
    if (record.data_ == nullptr) {
      return no_memory(layout.total_bytes);
    }
    record.size_ = layout.total_bytes;
    record.first_layer_offset_ = layout.first_layer_offset;
    record.part_offsets_ = part_offsets_of(layout);
    record.layer_stride_ = layout.layer_stride;
    std::memset(record.data_, 0, record.size_);  // padding, and layers that are never filled
    std::memcpy(record.data_ + format::kHeaderBytes, token_ids.data(), token_ids.size_bytes());
    return builder;
  } catch (const std::bad_alloc&) {
    return no_memory(layout.total_bytes);
  }
}

std::byte* RecordBuilder::layer_part(std::uint32_t layer, KvPart part) {
  return const_cast<std::byte*>(record_->layer_part(layer, part));
}

std::byte* RecordBuilder::layer_k(std::uint32_t layer) { return layer_part(layer, KvPart::kK); }

std::byte* RecordBuilder::layer_v(std::uint32_t layer) { return layer_part(layer, KvPart::kV); }

Status RecordBuilder::check_scales(std::uint32_t first_layer, std::uint32_t n_layers) const {
  const RecordMeta& meta = record_->meta_;
  const std::uint32_t end = n_layers == 0 ? meta.shape.n_layers : first_layer + n_layers;
  for (std::uint32_t layer = first_layer; layer < end; ++layer) {
    const std::size_t means = part_bytes(meta.shape, meta.codec, KvPart::kKMeans, n_tokens());
    if (const auto bad = find_bad_mean({record_->layer_part(layer, KvPart::kKMeans), means})) {
      return invalid_argument(fmt::format(
          "keys of layer {}, head {}: their mean is infinite, NaN or too large, which {} cannot "
          "hold",
          layer, *bad / meta.shape.head_dim_k, codec_name(meta.codec)));
    }
    for (const KvPart part : {KvPart::kKScales, KvPart::kVScales}) {
      const std::size_t size = part_bytes(meta.shape, meta.codec, part, n_tokens());
      if (const auto bad = find_bad_scale(meta.codec, {record_->layer_part(layer, part), size})) {
        return invalid_argument(fmt::format(
            "{} of layer {}, token {}, head {}: infinite, NaN or too large, which {} cannot hold",
            part == KvPart::kKScales ? "key" : "value", layer, *bad / meta.shape.n_kv_heads,
            *bad % meta.shape.n_kv_heads, codec_name(meta.codec)));
      }
    }
  }
  return Status();
}

std::shared_ptr<const Record> RecordBuilder::seal() && {
  if (record_ == nullptr) {
    return nullptr;
  }
  RecordHeader header;
  header.meta = record_->meta_;
  header.n_tokens = record_->n_tokens();
  header.token_hash = token_hash(record_->token_ids());
  header.body_checksum = xxh3_128(record_->bytes().subspan(format::kHeaderBytes));
  encode_record_header(header, record_->data_);
  return std::move(record_);
}

std::size_t record_bytes(const RecordMeta& meta, std::uint32_t n_tokens) {
  if (!check_record_limits(meta, n_tokens).ok()) {
    return 0;
  }
  return record_layout(meta, n_tokens).total_bytes;
}

}  // namespace inferscale
