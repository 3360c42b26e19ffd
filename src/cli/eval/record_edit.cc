#include "cli/eval/record_edit.h"

#include <cmath>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/f16.h"

namespace inferscale::cli {
namespace {

float load(const std::byte* elements, std::size_t i, KvCodec codec) {
  if (codec != KvCodec::kF32) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, elements + i * sizeof(bits), sizeof(bits));
    return codec == KvCodec::kF16 ? kernels::float_from_f16(bits) : kernels::float_from_bf16(bits);
  }
  float value = 0;
  std::memcpy(&value, elements + i * sizeof(value), sizeof(value));
  return value;
}

void store(std::byte* elements, std::size_t i, KvCodec codec, float value) {
  if (codec != KvCodec::kF32) {
    const std::uint16_t bits =
        codec == KvCodec::kF16 ? kernels::f16_from_float(value) : kernels::bf16_from_float(value);
    std::memcpy(elements + i * sizeof(bits), &bits, sizeof(bits));
    return;
  }
  std::memcpy(elements + i * sizeof(value), &value, sizeof(value));
}

/// Copies rows [from, from + count) of `source` to row `to` of the record that is built.
void copy_rows(const Record& source, std::uint32_t from, std::uint32_t count, std::uint32_t to,
               RecordBuilder& builder) {
  const KvShape& shape = source.meta().shape;
  const std::size_t element = codec_element_bytes(source.meta().codec);
  const std::size_t k_row = shape.k_elements() * element;
  const std::size_t v_row = shape.v_elements() * element;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    std::memcpy(builder.layer_k(layer) + to * k_row, source.layer_k(layer) + from * k_row,
                count * k_row);
    std::memcpy(builder.layer_v(layer) + to * v_row, source.layer_v(layer) + from * v_row,
                count * v_row);
  }
}

double relative_distance(const std::byte* a, const std::byte* b, std::size_t begin,
                         std::size_t count, KvCodec codec) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = begin; i < begin + count; ++i) {
    const double x = load(a, i, codec);
    const double y = load(b, i, codec);
    difference += (y - x) * (y - x);
    norm += x * x;
  }
  return norm > 0 ? std::sqrt(difference / norm) : 0;
}

}  // namespace

Result<RecordPtr> slice_record(const Record& record, std::uint32_t begin, std::uint32_t end) {
  INFERSCALE_ASSIGN_OR_RETURN(
      RecordBuilder builder,
      RecordBuilder::create(record.meta(), record.token_ids().subspan(begin, end - begin)));
  copy_rows(record, begin, end - begin, 0, builder);
  return std::move(builder).seal();
}

Result<RecordPtr> join_records(std::span<const RecordPtr> records) {
  std::vector<TokenId> tokens;
  for (const RecordPtr& record : records) {
    tokens.insert(tokens.end(), record->token_ids().begin(), record->token_ids().end());
  }
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder,
                              RecordBuilder::create(records.front()->meta(), tokens));
  std::uint32_t row = 0;
  for (const RecordPtr& record : records) {
    copy_rows(*record, 0, record->n_tokens(), row, builder);
    row += record->n_tokens();
  }
  return std::move(builder).seal();
}

Result<RecordPtr> scale_keys(const Record& record, float factor) {
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder,
                              RecordBuilder::create(record.meta(), record.token_ids()));
  copy_rows(record, 0, record.n_tokens(), 0, builder);
  const KvCodec codec = record.meta().codec;
  const std::size_t elements = record.meta().shape.k_elements() * record.n_tokens();
  for (std::uint32_t layer = 0; layer < record.meta().shape.n_layers; ++layer) {
    for (std::size_t i = 0; i < elements; ++i) {
      store(builder.layer_k(layer), i, codec, factor * load(record.layer_k(layer), i, codec));
    }
  }
  return std::move(builder).seal();
}

RowDistances row_distances(const Record& a, const Record& b) {
  const KvShape& shape = a.meta().shape;
  RowDistances distances;
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    std::vector<double> k;
    std::vector<double> v;
    for (std::size_t row = 0; row < a.n_tokens(); ++row) {
      k.push_back(relative_distance(a.layer_k(layer), b.layer_k(layer), row * shape.k_elements(),
                                    shape.k_elements(), a.meta().codec));
      v.push_back(relative_distance(a.layer_v(layer), b.layer_v(layer), row * shape.v_elements(),
                                    shape.v_elements(), a.meta().codec));
    }
    distances.k.push_back(std::move(k));
    distances.v.push_back(std::move(v));
  }
  return distances;
}

}  // namespace inferscale::cli
