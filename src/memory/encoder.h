#pragma once

#include <span>
#include <vector>

#include "catalog/catalog.h"
#include "inferscale/memory.h"
#include "memory/encode_context.h"
#include "memory/service_core.h"

namespace inferscale {

/// A longer fact is served as text only: its KV would be larger than a hundred ordinary facts'.
inline constexpr std::size_t kMaxEncodedFactTokens = 1024;

/// Turns facts into records: groups them by encode context, runs the engine, commits and stores.
/// Thread-safe: jobs of several threads interleave on the engine's queue.
class Encoder {
 public:
  explicit Encoder(ServiceCore& core) : core_(core) {}

  /// Encodes what has no record under the current model and context, in every scope: facts that
  /// were retrieved and found without KV first, then new facts, then those whose neighbours
  /// changed.
  [[nodiscard]] Result<EncodeReply> encode_pending(const WorkControl& control);
  /// Of these only the facts that were retrieved and found without KV.
  [[nodiscard]] Result<EncodeReply> encode_wanted(const WorkControl& control);
  /// Encodes these facts, whether they have a record or not.
  [[nodiscard]] Result<EncodeReply> encode_facts(std::vector<Fact> facts,
                                                 const WorkControl& control);
  /// Remembers a fact whose record was missing when it was wanted. Bounded; forgetting one costs
  /// latency only.
  void want(const Scope& scope, const std::string& fact_id);

 private:
  struct Job;
  Status encode_scope_run(Job& job, std::span<const Fact> facts);
  Status encode_group(Job& job, const EncodeGroup& group);
  Status commit(Job& job, const EncodeGroup& group, const Fact& fact,
                std::shared_ptr<const Record> record);
  std::vector<Fact> take_wanted();

  ServiceCore& core_;
  std::mutex wanted_mutex_;
  std::vector<std::pair<Scope, std::string>> wanted_;
};

}  // namespace inferscale
