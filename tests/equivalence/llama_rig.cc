#include "equivalence/llama_rig.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "model/gguf_model.h"

namespace inferscale::testing {
namespace {

constexpr std::int32_t kSequence = 0;
constexpr std::int32_t kScratch = 1;

/// A value that must be there; a test failure, and the end of the test program, otherwise.
template <typename T>
T must(Result<T> result, const char* what) {
  if (!result.ok()) {
    ADD_FAILURE() << what << ": " << result.status().to_string();
    throw std::runtime_error(what);
  }
  return std::move(result).value();
}

void must(const Status& status, const char* what) {
  if (!status.ok()) {
    ADD_FAILURE() << what << ": " << status.to_string();
    throw std::runtime_error(what);
  }
}

std::vector<double> log_softmax_double(const std::vector<float>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - largest);
  }
  std::vector<double> result(logits.begin(), logits.end());
  for (double& value : result) {
    value -= largest + std::log(sum);
  }
  return result;
}

}  // namespace

LlamaRig::LlamaRig(const RigOptions& options) {
  ensure_llama_backend();
  spec_ = must(read_model_spec(options.model, {}), "read_model_spec");
  state_ = {StateForm::kPlain, spec_.shape, options.cache_dtype};
  const RopeSpec& rope = options.rope ? *options.rope : spec_.rope;
  rope_ = must(RopeTable::build(rope, spec_.trained_positions,
                                options.key_bias ? spec_.key_bias : std::vector<float>()),
               "RopeTable");
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  model_.reset(llama_model_load_from_file(options.model.c_str(), params));
  SequencesOptions sequences;
  sequences.context_tokens = options.cells;
  sequences.sequences = 4;
  sequences.batch_tokens = options.batch_tokens;
  sequences.cache_dtype = options.cache_dtype;
  // More threads only spin when other tests run beside this one.
  sequences.threads = 1;
  sequences_ = must(LlamaSequences::create(model_.get(), sequences), "LlamaSequences");
}

LogitRows LlamaRig::decode(std::span<const TokenId> tokens, std::uint32_t position,
                           std::size_t wanted) {
  std::vector<BatchToken> batch;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.push_back({tokens[i], static_cast<std::int32_t>(position + i), kSequence,
                     i + wanted >= tokens.size()});
  }
  LogitRows rows;
  must(sequences_->decode(batch,
                          [&](std::size_t, std::span<const float> logits) {
                            rows.emplace_back(logits.begin(), logits.end());
                            return Status();
                          }),
       "decode");
  return rows;
}

std::vector<TokenId> LlamaRig::greedy(const LogitRows& last, std::uint32_t position, int count) {
  std::vector<TokenId> tokens;
  std::vector<float> logits = last.back();
  for (int i = 0; i < count; ++i) {
    tokens.push_back(
        static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    logits = decode({&tokens.back(), 1}, position + static_cast<std::uint32_t>(i), 1).back();
  }
  return tokens;
}

std::shared_ptr<const Record> LlamaRig::capture(std::span<const TokenId> tokens,
                                                std::uint32_t begin, KvCodec codec) {
  const auto end = static_cast<std::int32_t>(begin + tokens.size());
  const StateView view = must(
      sequences_->read(kSequence, static_cast<std::int32_t>(begin), end, kScratch, state_), "read");
  std::vector<std::uint32_t> rows(tokens.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    rows[static_cast<std::size_t>(view.positions[row]) - begin] = static_cast<std::uint32_t>(row);
  }
  RecordMeta meta;
  meta.model_fingerprint = spec_.fingerprint;
  meta.shape = spec_.shape;
  meta.codec = codec;
  RecordBuilder builder = must(RecordBuilder::create(meta, tokens), "RecordBuilder");
  must(kv_capture(view.rows, {begin, 0, rows}, *rope_, builder), "kv_capture");
  return std::move(builder).seal();
}

void LlamaRig::inject(const std::vector<Placed>& records, std::uint32_t rotation_error) {
  std::vector<std::int32_t> positions;
  std::vector<ComposeItem> items;
  for (const Placed& placed : records) {
    items.push_back({placed.record.get(), placed.position + rotation_error, positions.size(), {}});
    for (std::uint32_t i = 0; i < placed.record->n_tokens(); ++i) {
      positions.push_back(static_cast<std::int32_t>(placed.position + i));
    }
  }
  StateBuffer buffer;
  must(buffer.prepare(state_, positions), "StateBuffer");
  must(kv_compose(items, *rope_, buffer.rows()), "kv_compose");
  must(sequences_->write(kSequence, buffer.bytes()), "write");
}

std::vector<std::byte> LlamaRig::state_copy() {
  const auto bytes = must(sequences_->read_raw(kSequence), "read_raw");
  return {bytes.begin(), bytes.end()};
}

void LlamaRig::clear() { sequences_->clear(); }

double max_difference(const LogitRows& a, const LogitRows& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t row = 0; row < std::min(a.size(), b.size()); ++row) {
    for (std::size_t i = 0; i < a[row].size(); ++i) {
      const double difference = std::abs(static_cast<double>(a[row][i]) - b[row][i]);
      largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
    }
  }
  return largest;
}

double mean_kl(const LogitRows& a, const LogitRows& b) {
  if (a.size() != b.size() || a.empty()) {
    return INFINITY;
  }
  double sum = 0;
  for (std::size_t row = 0; row < a.size(); ++row) {
    const std::vector<double> p = log_softmax_double(a[row]);
    const std::vector<double> q = log_softmax_double(b[row]);
    for (std::size_t i = 0; i < p.size(); ++i) {
      sum += std::exp(p[i]) * (p[i] - q[i]);
    }
  }
  return std::isnan(sum) ? INFINITY : sum / static_cast<double>(a.size());
}

double changed_share(const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                     const StateSpec& spec) {
  const StateView left = must(parse_state(a, spec), "parse_state");
  const StateView right = must(parse_state(b, spec), "parse_state");
  EXPECT_EQ(left.positions, right.positions);
  const std::size_t element = codec_element_bytes(spec.dtype);
  std::size_t changed = 0;
  std::size_t total = 0;
  const auto compare = [&](const std::byte* x, const std::byte* y, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += element) {
      changed += std::memcmp(x + i, y + i, element) != 0 ? 1 : 0;
    }
    total += bytes / element;
  };
  for (std::uint32_t layer = 0; layer < spec.shape.n_layers; ++layer) {
    compare(left.rows.k[layer], right.rows.k[layer], left.rows.n_rows * left.rows.k_strides.row);
    compare(left.rows.v[layer], right.rows.v[layer], left.rows.n_rows * left.rows.v_strides.row);
  }
  return static_cast<double>(changed) / static_cast<double>(total);
}

std::vector<TokenId> random_tokens(std::size_t count, std::uint32_t vocab_size,
                                   std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(random() % vocab_size));
  }
  return tokens;
}

std::filesystem::path packaged_model() {
  std::filesystem::path path;
  if (const char* named = std::getenv("INFERSCALE_TEST_MODEL")) {
    path = named;
  } else if (const char* home = std::getenv("HOME")) {
    path = std::filesystem::path(home) / ".cache/inferscale/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  if (!std::filesystem::exists(path)) {
    ADD_FAILURE() << path << " is missing: run `./run setup`, or set INFERSCALE_TEST_MODEL";
    throw std::runtime_error("no packaged model");
  }
  return path;
}

std::filesystem::path packaged_model_f32() {
  const std::filesystem::path source = packaged_model();
  const std::filesystem::path target = source.parent_path() / "SmolLM2-135M-Instruct.F32.gguf";
  if (std::filesystem::exists(target)) {
    return target;
  }
  ensure_llama_backend();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_ALL_F32;
  params.allow_requantize = true;
  params.nthread = 2;
  // Written aside and renamed: two test programs may do this at once.
  std::filesystem::path part = target;
  part += fmt::format(".{}", ::getpid());
  if (llama_model_quantize(source.c_str(), part.c_str(), &params) != 0) {
    ADD_FAILURE() << "libllama could not make " << part;
    throw std::runtime_error("no f32 model");
  }
  std::filesystem::rename(part, target);
  return target;
}

}  // namespace inferscale::testing
