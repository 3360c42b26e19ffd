#pragma once

#include <functional>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "base/turn_mutex.h"
#include "catalog/catalog.h"
#include "inferscale/memory.h"
#include "memory/encode_context.h"
#include "memory/encode_run.h"
#include "memory/service_core.h"

namespace inferscale {

/// A longer fact is served as text only: its KV would be larger than a hundred ordinary facts'.
inline constexpr std::size_t kMaxEncodedFactTokens = 1024;

/// Turns facts into records: groups them by encode context, runs the engine, commits and stores.
/// What is to be done, and what failed and when to try it again, stands in the catalog: a crash
/// loses nothing and a restart repeats nothing too early. Thread-safe: jobs take turns, page by
/// page, so that one group at most is in the engine's queue at a time.
class Encoder {
 public:
  explicit Encoder(ServiceCore& core);

  /// Encodes what has no record under the current model and context, in every scope: facts that
  /// were retrieved and found without KV first, then new facts, then those whose neighbours
  /// changed. Leaves out what failed and is not due yet, and what was given up.
  [[nodiscard]] Result<EncodeReply> encode_pending(const WorkControl& control);
  /// Of these only the facts that were retrieved and found without KV.
  [[nodiscard]] Result<EncodeReply> encode_wanted(const WorkControl& control);
  /// Encodes these facts, but for those that have got a record meanwhile.
  [[nodiscard]] Result<EncodeReply> encode_facts(std::vector<Fact> facts,
                                                 const WorkControl& control);
  /// Remembers a fact whose record was missing when it was wanted. Bounded; forgetting one costs
  /// latency only.
  void want(const Scope& scope, const std::string& fact_id);
  /// Called after a fact was remembered so. Set before the encoder is used.
  void set_on_want(std::function<void()> on_want) { on_want_ = std::move(on_want); }

 private:
  struct Job;
  Job make_job(EngineParts& parts, const WorkControl& control) const;
  Result<EngineParts*> encoding_engine();
  Status encode_page(Job& job, std::vector<Fact> facts);
  Status encode_scope_run(Job& job, std::span<const Fact> facts);
  Status try_group(Job& job, const EncodeGroup& group);
  Status encode_group(Job& job, EncodeGroup group);
  Result<std::vector<std::vector<TokenId>>> fact_lines(Job& job, EncodeGroup& group);
  Status commit(Job& job, const EncodeGroup& group, const EncodeRun& run, std::size_t fact,
                std::shared_ptr<const Record> record);
  Status fail(Job& job, const Fact& fact, const Status& status, bool for_ever);
  Result<std::vector<Fact>> take_wanted(const EngineParts& parts);

  ServiceCore& core_;
  TurnMutex turn_;
  std::minstd_rand random_;  // guarded by turn_
  std::function<void()> on_want_;
  std::mutex wanted_mutex_;
  std::vector<std::pair<Scope, std::string>> wanted_;
};

}  // namespace inferscale
