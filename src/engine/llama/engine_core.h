#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "engine/engine.h"
#include "engine/llama/llama_engine.h"
#include "engine/llama/sequences.h"
#include "engine/llama/sessions.h"
#include "engine/llama/state_buffer.h"
#include "model/llama_handles.h"

namespace inferscale {

/// What tests may bend: every fallback must be seen to work. Not part of any public interface.
struct LlamaEngineHooks {
  std::atomic<int> reject_states{
      0};  ///< so many of the next injections are made invalid before libllama sees them
  std::optional<RopeSpec> rope;  ///< used instead of the model's own: the self-test must notice
  std::optional<StateForm> state_form;  ///< the only form that the self-test tries
  std::uint32_t batch_tokens = 0;       ///< 0: the default
  std::uint32_t max_sessions = 0;       ///< 0: the default
};

/// Sequence ids of the context: one that runs work in, one to pass states through, then branches,
/// then sessions.
inline constexpr std::int32_t kMainSequence = 0;
inline constexpr std::int32_t kScratchSequence = 1;
inline constexpr std::int32_t kFirstBranchSequence = 2;

/// All that a running engine owns except its thread and queue. One thread at a time.
struct LlamaCore {
  EngineInfo info;
  LlamaModelPtr model;  // before what refers to it
  std::shared_ptr<const RopeTable> rope;
  StateSpec state;
  std::unique_ptr<LlamaSequences> sequences;
  std::unique_ptr<SessionTable> sessions;
  StateBuffer compose_buffer;
  std::shared_ptr<LlamaEngineHooks> hooks;  ///< never null

  /// Loads the model and runs the self-tests. Errors: as open_llama_engine.
  [[nodiscard]] static Result<std::unique_ptr<LlamaCore>> open(
      const LlamaEngineOptions& options, std::shared_ptr<LlamaEngineHooks> hooks);
  /// Empties the cache after a failure that left it in an unknown state.
  void reset();
};

/// `open_llama_engine` with hooks.
[[nodiscard]] Result<std::unique_ptr<Engine>> open_llama_engine_with_hooks(
    const LlamaEngineOptions& options, std::shared_ptr<LlamaEngineHooks> hooks);

}  // namespace inferscale
