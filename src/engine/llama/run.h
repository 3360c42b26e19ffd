#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/llama/engine_core.h"
#include "engine/run_plan.h"

namespace inferscale {

/// One run on the engine's thread. Whatever happens, branches and scratch are empty afterwards, the
/// main sequence too, and a session holds exactly what it says it holds.
class LlamaRun {
 public:
  /// Both must outlive it.
  LlamaRun(LlamaCore& core, const RunRequest& request) : core_(core), request_(request) {}
  [[nodiscard]] Result<RunResult> execute();

 private:
  /// Changes nothing when it fails.
  [[nodiscard]] Status begin();
  [[nodiscard]] Status fill_cache();
  /// Null, or why the records could not be placed.
  [[nodiscard]] const char* inject();
  [[nodiscard]] Status compose();
  void start_again_as_text(const char* reason);
  [[nodiscard]] Status prefill(std::vector<BatchToken> batch);
  [[nodiscard]] Status prefill_text(std::size_t begin, std::size_t end, bool want_last);
  [[nodiscard]] Status prefill_branches();
  [[nodiscard]] Status keep_scores(std::int32_t sequence, std::size_t position,
                                   std::span<const float> logits);
  [[nodiscard]] bool scored(std::int32_t sequence, std::size_t position) const;
  [[nodiscard]] Status generate();
  void capture();
  [[nodiscard]] Result<std::shared_ptr<const Record>> capture_range(std::size_t branch,
                                                                    const CaptureRange& range);
  void finish(bool ok);

  [[nodiscard]] bool single() const { return request_.branches.size() == 1; }
  [[nodiscard]] std::int32_t sequence_of(std::size_t branch) const {
    return single() ? main_ : kFirstBranchSequence + static_cast<std::int32_t>(branch);
  }

  LlamaCore& core_;
  const RunRequest& request_;
  Stopwatch clock_;
  RunResult result_;
  RunPlan plan_;
  std::vector<TokenId> tokens_;  // plan, and the only branch's tokens if there is one
  std::size_t plan_tokens_ = 0;
  std::size_t decoded_ = 0;  // generated tokens that are in the cache
  std::int32_t main_ = kMainSequence;
};

}  // namespace inferscale
