#include "kernels/transcode.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/f16.h"
#include "kernels/kv_rows.h"

namespace inferscale {
namespace {

/// Keys or values of a layer, without their target.
template <typename Packed>
kernels::RowMove move_from(Packed& record, std::uint32_t layer, KvPart part) {
  const KvShape& shape = record.meta().shape;
  kernels::RowMove move;
  move.source_codec = record.meta().codec;
  move.n_tokens = record.n_tokens();
  move.n_heads = shape.n_kv_heads;
  move.head_dim = part == KvPart::kK ? shape.head_dim_k : shape.head_dim_v;
  const std::byte* elements = record.layer_part(layer, part);
  const std::byte* scales =
      record.layer_part(layer, part == KvPart::kK ? KvPart::kKScales : KvPart::kVScales);
  move.source = kernels::packed_rows(elements, 0, move.n_heads,
                                     codec_head_bytes(move.source_codec, move.head_dim));
  move.source_scales = kernels::packed_scales(scales, 0, move.n_heads);
  if (part == KvPart::kK) {
    move.source_means = record.layer_part(layer, KvPart::kKMeans);
  }
  return move;
}

/// Writes the means over the tokens of a layer's keys. Sums are in double, in the order of the
/// tokens.
void write_means(const Record& record, std::uint32_t layer, std::byte* means) {
  constexpr std::size_t kTile = 64;  // tokens
  const kernels::RowMove all = move_from(record, layer, KvPart::kK);
  const std::size_t elements = all.n_heads * all.head_dim;
  std::vector<float> rows(std::min(kTile, all.n_tokens) * elements);
  std::vector<double> sums(elements);
  for (std::size_t first = 0; first < all.n_tokens; first += kTile) {
    kernels::RowMove tile = all;
    tile.n_tokens = std::min(kTile, all.n_tokens - first);
    tile.source.base += first * all.source.row_stride;
    tile.source_scales += first * all.n_heads;
    tile.target_codec = KvCodec::kF32;
    tile.target = kernels::packed_rows(reinterpret_cast<std::byte*>(rows.data()), 0, all.n_heads,
                                       all.head_dim * sizeof(float));
    kernels::convert_rows(tile);
    for (std::size_t t = 0; t < tile.n_tokens; ++t) {
      for (std::size_t i = 0; i < elements; ++i) {
        sums[i] += rows[t * elements + i];
      }
    }
  }
  for (std::size_t i = 0; i < elements; ++i) {
    const auto mean = static_cast<float>(sums[i] / static_cast<double>(all.n_tokens));
    const std::uint16_t half = kernels::f16_from_float(mean);
    std::memcpy(means + i * sizeof(half), &half, sizeof(half));
  }
}

void copy_layer(const Record& record, std::uint32_t layer, RecordBuilder& builder) {
  const RecordMeta& meta = record.meta();
  for (const KvPart part : kKvParts) {
    std::memcpy(builder.layer_part(layer, part), record.layer_part(layer, part),
                part_bytes(meta.shape, meta.codec, part, record.n_tokens()));
  }
}

void convert_layer(const Record& record, std::uint32_t layer, RecordBuilder& builder) {
  const KvCodec codec = builder.meta().codec;
  if (codec == KvCodec::kQ4) {
    write_means(record, layer, builder.layer_part(layer, KvPart::kKMeans));
  }
  for (const auto& [part, scales] :
       {std::pair{KvPart::kK, KvPart::kKScales}, std::pair{KvPart::kV, KvPart::kVScales}}) {
    kernels::RowMove move = move_from(record, layer, part);
    move.target_codec = codec;
    move.target = kernels::packed_rows(builder.layer_part(layer, part), 0, move.n_heads,
                                       codec_head_bytes(codec, move.head_dim));
    move.target_scales = kernels::packed_scales(builder.layer_part(layer, scales), 0, move.n_heads);
    if (part == KvPart::kK) {
      move.target_means = builder.layer_part(layer, KvPart::kKMeans);
    }
    kernels::convert_rows(move);
  }
}

}  // namespace

Result<std::shared_ptr<const Record>> transcode_record(const Record& record, KvCodec codec) {
  if (!record.has_payload()) {
    return invalid_argument("record: a description; its keys and values are elsewhere");
  }
  RecordMeta meta = record.meta();
  meta.codec = codec;
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder,
                              RecordBuilder::create(meta, record.token_ids()));
  const bool copied = codec == record.meta().codec && codec == KvCodec::kQ4;
  for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
    if (copied) {
      copy_layer(record, layer, builder);
    } else {
      convert_layer(record, layer, builder);
    }
  }
  INFERSCALE_RETURN_IF_ERROR(builder.check_scales().with_context("record"));
  return std::move(builder).seal();
}

KvCodec capture_codec(KvCodec codec, KvCodec cache) {
  return codec == KvCodec::kQ4 ? cache : codec;
}

Result<std::shared_ptr<const Record>> seal_as(RecordBuilder builder, KvCodec codec) {
  std::shared_ptr<const Record> record = std::move(builder).seal();
  if (record->meta().codec == codec) {
    return record;
  }
  return transcode_record(*record, codec);
}

std::vector<float> layer_keys_as_floats(RecordBuilder& builder, std::uint32_t layer,
                                        const RopeTable& table) {
  kernels::RowMove move = move_from(builder, layer, KvPart::kK);
  move.source_bias = table.key_bias_of(layer, builder.meta().shape);
  std::vector<float> keys(move.n_tokens * move.n_heads * move.head_dim);
  move.target_codec = KvCodec::kF32;
  move.target = kernels::packed_rows(reinterpret_cast<std::byte*>(keys.data()), 0, move.n_heads,
                                     move.head_dim * sizeof(float));
  kernels::convert_rows(move);
  return keys;
}

}  // namespace inferscale
