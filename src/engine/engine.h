#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "inferscale/model_spec.h"
#include "inferscale/status.h"
#include "inferscale/types.h"
#include "prompt/tokenizer.h"

namespace inferscale {

/// A token span of a plan: a header, a fact, a history. With a ready lease its KV may be injected.
/// May be empty; then it changes nothing.
struct Segment {
  std::vector<TokenId> tokens;
  /// Its record must be of these token ids and of the engine's model; else the segment is prefilled
  /// and that is counted. A lease that is not ready means text without a word: whoever asked for it
  /// knows its reason and has counted it.
  Lease lease;
};

/// Tokens [begin, end) of the whole sequence (plan, then the branch's tokens) whose KV becomes a
/// record.
struct CaptureRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  RecordMeta meta;  ///< shape, codec and fingerprint must be this engine's
};

/// What follows the plan. Several branches share the plan's KV and do not see each other: bulk
/// encoding. All their tokens are prefilled in one batch.
struct Branch {
  std::vector<TokenId> tokens;
  std::vector<CaptureRange> captures;
  /// Indices in the whole sequence at which the next-token distribution is wanted. What a session
  /// holds from there on is computed again; in a segment that is injected they are refused.
  std::vector<std::uint32_t> score_positions;
};

struct Sampling {
  std::uint32_t max_tokens = 0;  ///< 0: no generation
  float temperature = 0;         ///< 0: greedy
  float top_p = 1;
  std::uint32_t top_k = 0;  ///< 0: off
  std::uint64_t seed = 0;
};

/// For whom a run is: an engine that others share keeps users apart by it. One inside this process
/// has no use for it.
struct RunFor {
  Scope scope;
  std::uint64_t epoch = 0;  ///< of (tenant, user), `Catalog::epoch`
  std::uint32_t top_j = 0;  ///< of the answer
  /// Runs with different ones share nothing that the engine keeps of its own accord.
  std::string client_salt;
};

struct RunRequest {
  RunFor run_for;
  std::vector<Segment> plan;
  std::vector<Branch>
      branches;  ///< at least one; generation needs exactly one, with at least one token
  Sampling sampling;
  /// False: the same tokens, all prefilled (the text arm). Of a session it reuses only what was
  /// never injected.
  bool allow_injection = true;
  /// Named sequence that stays in the cache after the run (plan, branch and generated tokens but
  /// the last), so that a later run whose tokens start with them prefills only the rest. Sessions
  /// are few and give way to runs that need their cells: one that vanished costs time only. Empty:
  /// nothing stays. Needs exactly one branch.
  std::string session;
  /// Called on the engine's thread for every generated token; returning false ends the generation.
  /// Must not throw and must not call the engine.
  std::function<bool(TokenId)> on_token;
  /// Polled during prefill and between tokens; true ends the run with kUnavailable ("cancelled").
  const std::atomic<bool>* cancelled = nullptr;
};

/// log-softmax of the logits at a scored position, [vocab_size].
struct ScoredPosition {
  std::uint32_t position = 0;
  std::vector<float> log_probs;
};

struct BranchResult {
  /// One per capture range, in order; null where the engine could not capture, which is counted.
  std::vector<std::shared_ptr<const Record>> records;
  std::vector<ScoredPosition> scores;  ///< one per score position, in order
};

/// Something that made a run do more work than planned; reasons are stable words
/// (docs/fallbacks.md).
struct Fallback {
  std::string reason;
  std::uint32_t count = 0;
};

struct RunTimings {
  double queue_ms = 0;    ///< waiting for the engine's thread
  double compose_ms = 0;  ///< gather, rotate, into the engine's buffer
  double inject_ms = 0;   ///< writing the buffer into the cache
  double prefill_ms = 0;
  double first_token_ms =
      0;  ///< from the start of the run on the engine's thread to the first token; 0 if none
  double decode_ms = 0;
  double capture_ms = 0;
  double total_ms = 0;  ///< queue included
};

struct RunResult {
  std::vector<BranchResult> branches;
  std::vector<TokenId> tokens;  ///< generated, the end-of-generation token not included
  bool stopped_by_limit =
      false;  ///< true: max_tokens or the context's end; false: end of generation or on_token
  std::uint32_t tokens_reused = 0;  ///< already in the session's cache
  std::uint32_t tokens_injected = 0;
  std::uint32_t tokens_prefilled = 0;
  std::vector<bool> segment_injected;  ///< one per plan segment: what was really injected
  std::vector<Fallback> fallbacks;
  RunTimings timings;
};

/// What an engine can do; constant after start.
struct EngineInfo {
  ModelSpec model;
  KvCodec cache_dtype = KvCodec::kF16;
  std::uint32_t context_tokens = 0;  ///< capacity for all that is in the cache at once
  std::uint32_t max_branches = 1;
  /// False: every run prefills and no capture gives a record; `injection_off_reason` says why.
  bool injection = false;
  std::string injection_off_reason;
  std::string library;  ///< e.g. "libllama 0.5.0"
};

/// One call for encoding, answering and evaluating (architecture §3):
/// 1. what of the sequence is already in the session's cache stays;
/// 2. plan segments from there are taken in order: text before the first segment with KV is
///    prefilled, then the longest run of consecutive segments with usable KV is injected, and
///    everything after it is prefilled with the branches;
/// 3. captures are read back, scores taken, tokens sampled.
/// Thread-safe: calls are queued to one owner thread (bounded queue: kResourceExhausted when full).
/// Errors: kInvalidArgument (ranges), kResourceExhausted (longer than the context), kUnavailable
/// (engine failed, cancelled). A failed run leaves the engine usable.
class Engine {
 public:
  virtual ~Engine() = default;
  [[nodiscard]] virtual const EngineInfo& info() const = 0;
  [[nodiscard]] virtual const Tokenizer& tokenizer() const = 0;
  [[nodiscard]] virtual const ChatFormat& chat_format() const = 0;
  [[nodiscard]] virtual Result<RunResult> run(RunRequest request) = 0;
  /// Drops a session's KV from the cache. kOk when there is none of that name.
  [[nodiscard]] virtual Status drop_session(const std::string& session) = 0;
};

}  // namespace inferscale
