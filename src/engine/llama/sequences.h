#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/llama/state_buffer.h"
#include "inferscale/status.h"
#include "inferscale/types.h"
#include "model/llama_handles.h"

namespace inferscale {

/// One token to decode: where it stands, in which sequence, and whether its next-token logits are
/// wanted.
struct BatchToken {
  TokenId token = 0;
  std::int32_t position = 0;
  std::int32_t sequence = 0;
  bool logits = false;
};

struct SequencesOptions {
  std::uint32_t context_tokens = 0;  ///< cells of the one cache that all sequences share
  std::uint32_t sequences = 1;       ///< ids 0 .. sequences-1
  std::uint32_t batch_tokens = 512;  ///< tokens that go through the model at once
  KvCodec cache_dtype = KvCodec::kF16;
  int threads = 1;
};

/// The sequences of one llama_context: decoding, and the reading, writing and sharing of their
/// cells. One thread at a time. Every exception of libllama becomes a Status.
class LlamaSequences {
 public:
  /// `model` must outlive it. Errors: kResourceExhausted (libllama could not make the context).
  [[nodiscard]] static Result<std::unique_ptr<LlamaSequences>> create(
      llama_model* model, const SequencesOptions& options);

  /// Gets the logits of token `index` of a `decode` call, [vocab_size], valid during the call.
  using LogitsSink = std::function<Status(std::size_t index, std::span<const float> logits)>;

  /// Decodes in chunks of at most batch_tokens. Positions of a sequence must go on from what it
  /// holds. On an error some tokens may be in the cache: the caller removes its sequences. Errors:
  /// kUnavailable ("cancelled", or the backend failed: then `clear` is due), kResourceExhausted (no
  /// cells).
  [[nodiscard]] Status decode(std::span<const BatchToken> tokens, const LogitsSink& sink);
  /// True ends a running `decode` between two operations of the graph. Null: never. Borrowed until
  /// replaced.
  void set_cancel_flag(const std::atomic<bool>* cancelled) { cancelled_ = cancelled; }

  /// Makes the cells of positions [begin, end) of `from` also belong to `to`. Copies no data.
  void share(std::int32_t from, std::int32_t to, std::int32_t begin, std::int32_t end);
  /// Takes positions [begin, end) from a sequence; end -1: all from `begin` on.
  void remove(std::int32_t sequence, std::int32_t begin, std::int32_t end);
  /// Empties the whole cache.
  void clear();
  /// Largest position in a sequence, -1 when it is empty.
  [[nodiscard]] std::int32_t last_position(std::int32_t sequence) const;

  /// The cells of positions [begin, end) of `sequence`, which must be there. Goes through sequence
  /// `scratch`, which must be empty and is empty again afterwards; so only these rows are read, not
  /// the whole sequence. The view is valid until the next `read`. Errors: kDataLoss (the state is
  /// not as `spec` says), kInternal (cells missing).
  [[nodiscard]] Result<StateView> read(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                       std::int32_t scratch, const StateSpec& spec);
  /// A sequence's state as libllama writes it, whatever its form. Valid until the next `read`.
  [[nodiscard]] Result<std::span<const std::byte>> read_raw(std::int32_t sequence);
  /// Replaces what `sequence` holds by a state. Errors: kDataLoss when libllama did not take all of
  /// it; the sequence is empty then.
  [[nodiscard]] Status write(std::int32_t sequence, std::span<const std::byte> state);

  /// Whether libllama failed in a way after which the cache's content is unknown; `clear` resets
  /// it.
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] llama_context* context() const { return context_.get(); }
  [[nodiscard]] const SequencesOptions& options() const { return options_; }
  /// Index that llama_sampler_sample takes for the last token of the last `decode`, if its logits
  /// were wanted.
  [[nodiscard]] std::int32_t last_output() const { return last_output_; }

  LlamaSequences(const LlamaSequences&) = delete;
  LlamaSequences& operator=(const LlamaSequences&) = delete;

 private:
  LlamaSequences() = default;
  [[nodiscard]] Status decode_chunk(std::span<const BatchToken> tokens, std::size_t first,
                                    const LogitsSink& sink);
  [[nodiscard]] Status read_bytes(std::int32_t sequence, std::size_t size);

  SequencesOptions options_;
  LlamaContextPtr context_;
  llama_memory_t memory_ = nullptr;
  std::optional<LlamaBatch> batch_;
  std::size_t vocab_size_ = 0;
  std::int32_t last_output_ = -1;
  bool broken_ = false;
  const std::atomic<bool>* cancelled_ = nullptr;
  StateBuffer read_buffer_;
};

}  // namespace inferscale
