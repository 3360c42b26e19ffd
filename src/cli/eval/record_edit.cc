#include "cli/eval/record_edit.h"

#include <cmath>
#include <cstring>

#include "kernels/transcode.h"

namespace inferscale::cli {
namespace {

float load(const std::byte* floats, std::size_t i) {
  float value = 0;
  std::memcpy(&value, floats + i * sizeof(value), sizeof(value));
  return value;
}

/// Copies rows [from, from + count) of `source` to row `to` of the record that is built.
void copy_rows(const Record& source, std::uint32_t from, std::uint32_t count, std::uint32_t to,
               RecordBuilder& builder) {
  const KvShape& shape = source.meta().shape;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (const KvPart part : kTokenParts) {
      const std::size_t row = part_token_bytes(shape, source.meta().codec, part);
      std::memcpy(builder.layer_part(layer, part) + to * row,
                  source.layer_part(layer, part) + from * row, count * row);
    }
  }
}

double relative_distance(const std::byte* a, const std::byte* b, std::size_t begin,
                         std::size_t count) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = begin; i < begin + count; ++i) {
    const double x = load(a, i);
    const double y = load(b, i);
    difference += (y - x) * (y - x);
    norm += x * x;
  }
  return norm > 0 ? std::sqrt(difference / norm) : 0;
}

}  // namespace

Result<RecordPtr> slice_record(const Record& record, std::uint32_t begin, std::uint32_t end) {
  if (record.meta().codec == KvCodec::kQ4) {
    INFERSCALE_ASSIGN_OR_RETURN(const RecordPtr floats, transcode_record(record, KvCodec::kF32));
    return slice_record(*floats, begin, end);
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      RecordBuilder builder,
      RecordBuilder::create(record.meta(), record.token_ids().subspan(begin, end - begin)));
  copy_rows(record, begin, end - begin, 0, builder);
  return std::move(builder).seal();
}

Result<RecordPtr> join_records(std::span<const RecordPtr> records) {
  std::vector<TokenId> tokens;
  RecordMeta meta = records.front()->meta();
  for (const RecordPtr& record : records) {
    tokens.insert(tokens.end(), record->token_ids().begin(), record->token_ids().end());
    if (record->meta().codec != meta.codec || meta.codec == KvCodec::kQ4) {
      meta.codec = KvCodec::kF32;
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder, RecordBuilder::create(meta, tokens));
  std::uint32_t row = 0;
  for (const RecordPtr& given : records) {
    RecordPtr record = given;
    if (record->meta().codec != meta.codec) {
      INFERSCALE_ASSIGN_OR_RETURN(record, transcode_record(*given, meta.codec));
    }
    copy_rows(*record, 0, record->n_tokens(), row, builder);
    row += record->n_tokens();
  }
  return std::move(builder).seal();
}

Result<RecordPtr> scale_keys(const Record& record, float factor) {
  INFERSCALE_ASSIGN_OR_RETURN(const RecordPtr floats, transcode_record(record, KvCodec::kF32));
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder,
                              RecordBuilder::create(floats->meta(), record.token_ids()));
  copy_rows(*floats, 0, record.n_tokens(), 0, builder);
  const std::size_t elements = record.meta().shape.k_elements() * record.n_tokens();
  for (std::uint32_t layer = 0; layer < record.meta().shape.n_layers; ++layer) {
    for (std::size_t i = 0; i < elements; ++i) {
      const float scaled = factor * load(floats->layer_k(layer), i);
      std::memcpy(builder.layer_k(layer) + i * sizeof(scaled), &scaled, sizeof(scaled));
    }
  }
  const RecordPtr made = std::move(builder).seal();
  // Rounded to 16 levels once more it would be another experiment.
  return record.meta().codec == KvCodec::kQ4 ? Result<RecordPtr>(made)
                                             : transcode_record(*made, record.meta().codec);
}

Result<RowDistances> row_distances(const Record& one, const Record& other) {
  INFERSCALE_ASSIGN_OR_RETURN(const RecordPtr a, transcode_record(one, KvCodec::kF32));
  INFERSCALE_ASSIGN_OR_RETURN(const RecordPtr b, transcode_record(other, KvCodec::kF32));
  const KvShape& shape = one.meta().shape;
  RowDistances distances;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    std::vector<double> k;
    std::vector<double> v;
    for (std::size_t row = 0; row < one.n_tokens(); ++row) {
      k.push_back(relative_distance(a->layer_k(layer), b->layer_k(layer), row * shape.k_elements(),
                                    shape.k_elements()));
      v.push_back(relative_distance(a->layer_v(layer), b->layer_v(layer), row * shape.v_elements(),
                                    shape.v_elements()));
    }
    distances.k.push_back(std::move(k));
    distances.v.push_back(std::move(v));
  }
  return distances;
}

}  // namespace inferscale::cli
