#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/llama/sequences.h"
#include "engine/llama/state_buffer.h"
#include "inferscale/kv_kernels.h"
#include "model/llama_handles.h"

namespace inferscale::testing {

using LogitRows = std::vector<std::vector<float>>;

struct RigOptions {
  std::filesystem::path model;
  KvCodec cache_dtype = KvCodec::kF32;
  std::uint32_t cells = 512;  ///< positions may go beyond: up to the trained length
  std::uint32_t batch_tokens = 512;
  std::optional<RopeSpec> rope =
      std::nullopt;      ///< instead of the model's, for tests that must fail
  bool key_bias = true;  ///< whether records are without it, as the engine's are
};

/// A record's tokens and where they are to stand.
struct Placed {
  std::shared_ptr<const Record> record;
  std::uint32_t position = 0;
};

/// A loaded model with a cache, below the engine: positions are free, nothing is checked or
/// retried. Failures of its calls are test failures.
class LlamaRig {
 public:
  explicit LlamaRig(const RigOptions& options);

  [[nodiscard]] const ModelSpec& spec() const { return spec_; }
  [[nodiscard]] const StateSpec& state() const { return state_; }
  [[nodiscard]] LlamaSequences& sequences() { return *sequences_; }

  /// Decodes tokens behind what sequence 0 holds, in one batch; the logits of the last `wanted`.
  LogitRows decode(std::span<const TokenId> tokens, std::uint32_t position, std::size_t wanted);
  /// `count` greedy tokens after `last`, whose logits were the last ones decoded.
  std::vector<TokenId> greedy(const LogitRows& last, std::uint32_t position, int count);
  /// Un-rotates and stores positions [begin, begin + tokens) of sequence 0.
  std::shared_ptr<const Record> capture(std::span<const TokenId> tokens, std::uint32_t begin,
                                        KvCodec codec);
  /// Composes records in one state and makes it sequence 0's content. Keys are rotated to their
  /// positions plus `rotation_error`: 0, except where a test shows that a gate can fail.
  void inject(const std::vector<Placed>& records, std::uint32_t rotation_error = 0);
  /// Sequence 0's state as bytes.
  std::vector<std::byte> state_copy();
  void clear();

 private:
  ModelSpec spec_;
  StateSpec state_;
  LlamaModelPtr model_;
  std::unique_ptr<LlamaSequences> sequences_;
  std::shared_ptr<const RopeTable> rope_;
};

/// Largest absolute difference over all rows.
[[nodiscard]] double max_difference(const LogitRows& a, const LogitRows& b);
/// Mean of KL(softmax(a) || softmax(b)) over the rows.
[[nodiscard]] double mean_kl(const LogitRows& a, const LogitRows& b);
/// Share of elements of two states' rows that differ.
[[nodiscard]] double changed_share(const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                                   const StateSpec& spec);

/// Token ids without meaning, the same for equal seeds.
[[nodiscard]] std::vector<TokenId> random_tokens(std::size_t count, std::uint32_t vocab_size,
                                                 std::uint32_t seed);

/// The packaged SmolLM2 (environment INFERSCALE_TEST_MODEL, else ~/.cache/inferscale/models). A
/// missing file is a test failure that says what to run.
[[nodiscard]] std::filesystem::path packaged_model();
/// The same with f32 weights, made once by libllama's own quantiser and kept beside it.
[[nodiscard]] std::filesystem::path packaged_model_f32();

}  // namespace inferscale::testing
