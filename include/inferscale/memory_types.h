#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// How a MemoryService behaves and how much it may use. Behaviour first, then performance.
struct MemoryOptions {
  std::filesystem::path directory;  ///< data directory (facts, records); created with mode 0700;
                                    ///< one process at a time
  std::filesystem::path
      model;  ///< GGUF of the served model; needed once something is encoded or asked
  std::filesystem::path
      embedder;  ///< GGUF of the embedding model; empty: retrieval by keywords alone
  /// "vllm=http://HOST:PORT[,control=URL][,control-file=PATH]": a vLLM server with InferScale's
  /// connector runs the model and keeps its records (docs/vllm.md); empty: the engine inside this
  /// process, with `model`.
  std::string engine;
  std::filesystem::path cache_directory;  ///< for derived files that may be lost
  /// What facts are encoded behind (ARCHITECTURE.md), as "window:8"; empty: what `reencode` chose
  /// for this data directory, else the built-in default.
  std::string encode_context;
  std::optional<std::uint32_t> top_j;  ///< facts prefilled as text; unset: calibrated per model
  std::string system_prompt;           ///< empty: the built-in one
  /// A thread of the service encodes what `add`, `update` and `remove` leave when they do not wait,
  /// what an earlier process left, and what answers found without KV; it loads the models when
  /// there is a fact. Off: all that is left to `encode_pending`.
  bool encode_in_background = false;

  std::uint64_t host_budget_bytes = 1ULL << 30;  ///< records in memory; 0 keeps none, docs/cli.md
  std::uint64_t disk_budget_bytes = 8ULL << 30;  ///< records on disk; 0 keeps none
  KvCodec store_codec = KvCodec::kF16;
  KvCodec cache_dtype = KvCodec::kF16;
  std::uint32_t context_tokens = 0;  ///< 0: what the model was trained for, at most 8,192
  int threads = 0;                   ///< 0: the number of cores
};

/// Called from the calling thread between steps of long work; must not throw.
using Progress =
    std::function<void(const std::string& stage, std::uint64_t done, std::uint64_t total)>;

/// Cancelled work (Ctrl-C) ends at the next step; a repeated call goes on from what is committed.
struct WorkControl {
  Progress progress;
  const std::atomic<bool>* cancelled = nullptr;
};

/// A remembered statement as the caller gives it.
struct FactInput {
  std::string text;
  std::string metadata = "{}";  ///< a JSON object; can never set the scope
  std::string event_time;       ///< RFC 3339 or empty
  std::vector<std::string> source_turns;
};

struct TurnInput {
  std::string id;  ///< unique within the scope
  std::string speaker;
  std::string role = "user";
  std::string text;
  std::string event_time;
};

struct ItemError {
  std::uint64_t item = 0;  ///< index in the caller's list
  StatusCode code = StatusCode::kInternal;
  std::string message;
};

struct AddReply {
  std::vector<std::string>
      ids;  ///< one or more per input (a long text becomes several facts), in order
  std::uint64_t turns = 0;
  std::uint64_t facts_added = 0;
  std::uint64_t facts_existing = 0;  ///< exact duplicates: nothing was written
  std::uint64_t facts_encoded = 0;
  std::vector<ItemError> errors;  ///< items that were not taken; the others were
  std::string note;  ///< set when facts were taken but not embedded or encoded yet, and why
  double elapsed_ms = 0;
};

/// What facts are to be encoded behind from now on.
struct ReencodeRequest {
  std::string context;  ///< as MemoryOptions::encode_context; empty: what is chosen already
  bool all = false;     ///< every fact, not only those whose record is of another context
};

struct EncodeReply {
  std::uint64_t encoded = 0;
  std::uint64_t failed = 0;    ///< stay usable as text; `stats` says when they are tried again
  bool stopped_early = false;  ///< the engine failed again and again: the rest is still pending
  std::uint64_t tokens_prefilled = 0;
  double elapsed_ms = 0;
};

/// The live version of a fact, as users see it.
struct FactView {
  std::string id;
  Scope scope;
  std::uint32_t version = 1;
  std::string text;
  std::string metadata = "{}";
  std::string event_time;   ///< RFC 3339 or empty
  std::string ingest_time;  ///< RFC 3339
  std::vector<std::string> source_turns;
};

struct FactHistoryRow {
  std::uint32_t version = 1;
  std::string event;
  std::string text;
  std::string metadata = "{}";
  std::string event_time;
  std::string valid_from;
  std::string valid_to;  ///< empty while live
};

struct FactList {
  std::vector<FactView> facts;
  std::string next_cursor;
};

struct SearchHit {
  FactView fact;
  double score = 0;
  double vector_score = 0;
  double keyword_score = 0;
};

struct SearchReply {
  std::vector<SearchHit> hits;  ///< best first
  double embed_ms = 0;
  double retrieve_ms = 0;
  std::string
      note;  ///< not empty when something was missing (e.g. no embedding model: keywords alone)
};

struct AskRequest {
  Scope scope;
  std::string question;
  std::uint32_t k = 10;
  std::optional<std::uint32_t> top_j;  ///< overrides the service's
  bool inject = true;
  std::string filter;  ///< JSON condition on metadata; empty: none
  std::uint32_t max_tokens = 128;
  float temperature = 0;  ///< 0: greedy
  std::uint64_t seed = 0;
  std::function<bool(std::string_view)>
      on_text;  ///< streams the answer in valid UTF-8 pieces; false stops
  const std::atomic<bool>* cancelled = nullptr;
};

struct UsedFact {
  std::string id;
  std::string text;
  bool injected = false;   ///< what really happened, as the engine reports it
  std::uint32_t rank = 0;  ///< 1 is the best
};

struct TokenCounts {
  std::uint32_t prompt = 0;
  std::uint32_t injected = 0;
  std::uint32_t prefilled = 0;
  std::uint32_t reused = 0;  ///< already in the cache (chat)
  std::uint32_t generated = 0;
};

struct FallbackCount {
  std::string reason;
  std::uint32_t count = 0;
};

/// Milliseconds. `ttft` runs from the retrieved facts to the first token, `qtft` from the question.
struct AskTimings {
  double embed = 0, retrieve = 0, plan = 0, lease = 0, compose = 0, inject = 0, prefill = 0;
  double ttft = 0, qtft = 0, total = 0;
};

struct AskReply {
  std::string answer;
  std::vector<UsedFact> facts;  ///< in prompt order
  TokenCounts tokens;
  std::vector<FallbackCount> fallbacks;
  AskTimings timings;
  bool truncated = false;  ///< the answer ended at max_tokens
};

/// The same prompt without memory, with the facts as text, and with injected facts.
struct CompareReply {
  AskReply none, text, inject;  ///< timings are medians over the rounds
  bool same_token_ids = false;  ///< of the text and inject prompts
  bool greedy_equal = false;    ///< of the text and inject answers
  double kl_first_token = 0;    ///< KL(text || inject), nats
  double kl_noise_floor = 0;    ///< KL(text || text prefilled in another batch split)
  std::uint32_t rounds = 0;
};

struct ChatOptions {
  Scope scope;
  std::uint32_t k = 10;
  std::optional<std::uint32_t> top_j;
  bool inject = true;
  std::uint32_t max_tokens = 256;
  float temperature = 0;
};

struct UpdateRequest {
  Scope scope;
  std::string id;
  std::optional<std::string> text;
  std::optional<std::string> metadata;
  std::optional<std::string> event_time;
  std::optional<std::uint32_t> if_version;
};

/// What to erase. Exactly one of `ids`, `filter` and `all_in_scope` chooses the facts; what is
/// shared with the scope is erased only by a request in that shared scope.
struct DeleteRequest {
  Scope scope;
  std::vector<std::string> ids;
  std::string filter;         ///< JSON condition on metadata
  bool all_in_scope = false;  ///< facts, and turns unless `keep_turns`
  /// Erases only what was superseded: text, metadata and history of versions that are no longer
  /// live, and the records that saw them. The facts stay.
  bool old_versions = false;
  bool keep_turns = false;  ///< keeps the turns that no other fact cites
  bool dry_run = false;     ///< counts what would go, and erases nothing
};

/// What a delete erased, where.
struct DeleteReceipt {
  std::uint64_t facts = 0, versions = 0, history = 0, vectors = 0, keywords = 0, turns = 0;
  std::uint64_t records_gpu = 0, records_host = 0, records_disk = 0;
  std::uint64_t record_entries = 0;  ///< records that the catalog named, wherever they were
  std::uint64_t records_in_use = 0;  ///< of those: leased by an answer, wiped when it ends
  std::uint64_t dependants = 0;      ///< live facts whose record saw an erased one, and is gone
  std::uint64_t dependants_reencoded = 0;
  /// Answers under way that use what was erased (as text, as KV, or through KV that saw it); they
  /// may finish.
  std::uint64_t answers_running = 0;
  std::uint64_t chats_open = 0;  ///< conversations that hold it; they start over at the next turn
  bool dry_run = false;          ///< nothing was erased: the counts are what would go
  bool verified = false;         ///< catalog, indices and tiers were read again: nothing was found
  bool engine_away = false;      ///< not verified only because the server with the records is away
  std::string note;              ///< why not verified
};

struct DoctorCheck {
  std::string name;
  bool ok = false;
  std::string detail;
};

/// A fact that could not be encoded and is used as text.
struct EncodeFailureView {
  std::string id;
  std::uint32_t version = 1;
  std::uint32_t attempts = 0;
  std::string next_try;  ///< RFC 3339; empty: given up until its text, the model or the context
                         ///< changes
  std::string error;
};

/// What waits to be encoded under the current model and context.
struct EncodeQueueStats {
  std::uint64_t pending = 0;   ///< without a record, or with an outdated one
  std::uint64_t waiting = 0;   ///< of these: failed, tried again later
  std::uint64_t given_up = 0;  ///< of these: never tried again
  std::string next_try;        ///< RFC 3339, the earliest; empty: nothing waits
  std::string last_error;
  bool background = false;                  ///< a thread of this service encodes them
  std::vector<EncodeFailureView> failures;  ///< the latest 20
};

struct StatsReply {
  std::uint64_t facts = 0, turns = 0, versions = 0, vectors = 0, records = 0, scopes = 0;
  std::uint64_t facts_pending =
      0;  ///< live facts without a record under the current model and context
  EncodeQueueStats encode;
  std::string model, model_fingerprint, encode_context;
  std::string
      top_j;  ///< "0 (calibrated 2026-11-29, 1.62 x TTFT at 1)", "4 (set)", "not calibrated yet"
  std::string injection;  ///< "on", or "off: reason"
  KvStoreStats kv;
};

}  // namespace inferscale
