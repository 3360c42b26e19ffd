#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "cli/bench/temp_directory.h"
#include "cli/bench/workload.h"
#include "inferscale/kv_store.h"
#include "memory/service.h"
#include "retrieval/retriever.h"

namespace inferscale::cli {

/// kWarm: as kText, with all but the question in the engine's own cache.
enum class Arm { kNone, kText, kInject, kWarm };

/// One measured question, in milliseconds. `ttft` runs from the retrieved facts to the first token.
struct TtftSample {
  double ttft = 0;
  double embed = 0, retrieve = 0, plan = 0, lease = 0, compose = 0, state_write = 0, prefill = 0;
  std::uint32_t facts_tokens = 0;
  std::uint32_t injected = 0;
  std::uint32_t prefilled = 0;
  std::uint32_t reused = 0;  ///< found in the engine's own cache
};

/// A real catalog, retriever, store and engine over made-up facts of a user of its own, in a
/// temporary directory. The header is injected from its record in every arm but kWarm, so that the
/// arms differ in the facts alone; no run finds anything of another in an engine's own cache, but
/// that of kWarm what was computed for it just before its clock starts.
class TtftRig {
 public:
  /// Stores and encodes facts for questions about up to `most` of them, and some more, so that
  /// retrieval has something to choose from. Errors: kUnavailable when injection is off (with the
  /// reason) or `control` says so, kResourceExhausted when `most` do not fit into the context; what
  /// the parts give.
  [[nodiscard]] static Result<std::unique_ptr<TtftRig>> open(
      const MemoryOptions& options, const ServiceDependencies& dependencies, std::uint32_t most,
      const WorkControl& control);
  /// A server forgets the facts; the header's record, which belongs to nobody, stays there.
  ~TtftRig();
  TtftRig(const TtftRig&) = delete;
  TtftRig& operator=(const TtftRig&) = delete;

  /// Errors: kInternal when something else was injected than the arm says: such a figure would
  /// mislead.
  [[nodiscard]] Result<TtftSample> measure(Arm arm, std::uint32_t k, std::uint32_t top_j);

  [[nodiscard]] const Engine& engine() const { return *engine_; }
  [[nodiscard]] const Workload& workload() const { return *workload_; }
  [[nodiscard]] std::uint32_t question_tokens() const { return question_tokens_; }
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> fact_token_range() const;

 private:
  struct StoredFact {
    std::vector<TokenId> tokens;
    RecordKey key;
  };
  struct Prompt;

  TtftRig() = default;
  Status open_parts(const MemoryOptions& options, const ServiceDependencies& dependencies);
  [[nodiscard]] Status check_room(std::uint32_t most) const;
  [[nodiscard]] RunFor run_for() const;
  [[nodiscard]] RecordMeta meta(ContextKind kind) const;
  [[nodiscard]] RecordRequest request_for(const RecordMeta& meta, const RecordKey& key,
                                          const std::vector<TokenId>& tokens) const;
  Status store_facts();
  Status encode_header();
  Status encode_facts(const WorkControl& control);
  Status encode_batch(std::span<StoredFact* const> batch);
  Result<std::vector<Fact>> retrieve(std::uint32_t k, TtftSample& sample);
  Result<Prompt> prepare(Arm arm, const std::vector<Fact>& facts, std::uint32_t top_j,
                         TtftSample& sample);
  Status run_prompt(Prompt prompt, const Stopwatch& watch, TtftSample& sample);
  Result<std::string> warm_up(const std::vector<Fact>& facts, std::uint32_t top_j);

  std::unique_ptr<TempDirectory> directory_;  // outlives what keeps files in it
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Embedder> embedder_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Retriever> retriever_;
  std::unique_ptr<KvStore> store_;
  std::optional<Workload> workload_;
  std::vector<std::byte> secret_;
  Scope scope_;
  const std::atomic<bool>* cancelled_ = nullptr;
  RecordKey header_key_;
  std::map<std::string, StoredFact> facts_;  // by id
  std::uint32_t question_tokens_ = 0;
};

}  // namespace inferscale::cli
