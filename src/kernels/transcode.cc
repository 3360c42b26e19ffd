#include "kernels/transcode.h"

#include <utility>

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
                                     move.head_dim * codec_element_bytes(move.source_codec));
  move.source_scales = kernels::packed_scales(scales, 0, move.n_heads);
  return move;
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
  for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
    for (const auto& [part, scales] :
         {std::pair{KvPart::kK, KvPart::kKScales}, std::pair{KvPart::kV, KvPart::kVScales}}) {
      kernels::RowMove move = move_from(record, layer, part);
      move.target_codec = codec;
      move.target = kernels::packed_rows(builder.layer_part(layer, part), 0, move.n_heads,
                                         move.head_dim * codec_element_bytes(codec));
      move.target_scales =
          kernels::packed_scales(builder.layer_part(layer, scales), 0, move.n_heads);
      kernels::convert_rows(move);
    }
  }
  INFERSCALE_RETURN_IF_ERROR(builder.check_scales().with_context("record"));
  return std::move(builder).seal();
}

std::vector<float> layer_keys_as_floats(RecordBuilder& builder, std::uint32_t layer) {
  kernels::RowMove move = move_from(builder, layer, KvPart::kK);
  std::vector<float> keys(move.n_tokens * move.n_heads * move.head_dim);
  move.target_codec = KvCodec::kF32;
  move.target = kernels::packed_rows(reinterpret_cast<std::byte*>(keys.data()), 0, move.n_heads,
                                     move.head_dim * sizeof(float));
  kernels::convert_rows(move);
  return keys;
}

}  // namespace inferscale
