#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/turn_mutex.h"
#include "engine/engine.h"
#include "engine/fake_tokenizer.h"
#include "engine/run_plan.h"

namespace inferscale {

struct FakeEngineOptions {
  std::uint32_t context_tokens = 8192;
  std::uint32_t max_branches = 32;
  std::uint32_t max_sessions = 8;
  bool injection = true;
  KvCodec cache_dtype = KvCodec::kF16;
  std::uint8_t model = 1;  ///< other values are other models: other fingerprints
};

/// One call of `run`, as it came in and went out.
struct FakeCall {
  std::vector<std::vector<TokenId>> segments;
  std::vector<bool> offered;  ///< segments with a ready lease
  std::vector<bool> injected;
  std::vector<std::vector<TokenId>> branches;
  std::string session;
  bool allow_injection = true;
  std::uint32_t max_tokens = 0;
  std::uint32_t captures = 0;
  std::uint32_t tokens_reused = 0;
  std::uint32_t tokens_injected = 0;
  std::uint32_t tokens_prefilled = 0;
  StatusCode status = StatusCode::kOk;
};

/// An engine without a model, for tests of what stands on engines. It keeps the whole contract of
/// `Engine`: the same checks, reuse, injection and fallbacks as the real one. A token's keys and
/// values are a function of its id alone, so a record made from other tokens than it says is
/// noticed wherever it is injected: the answer turns into "WRONG KV at N". Otherwise the answer is
/// "answer-" and a hash of all tokens that the run could see: equal for injected and prefilled
/// prompts, different for different ones. It reports a millisecond of prefill for each token, as a
/// model would take. Thread-safe; runs take turns.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(const FakeEngineOptions& options = {});

  [[nodiscard]] const EngineInfo& info() const override { return info_; }
  [[nodiscard]] const Tokenizer& tokenizer() const override { return tokenizer_; }
  [[nodiscard]] const ChatFormat& chat_format() const override { return chat_format_; }
  [[nodiscard]] Result<RunResult> run(RunRequest request) override;
  [[nodiscard]] Status drop_session(const std::string& session) override;

  /// The answer to a sequence of tokens (all of them, in order), without its end token.
  [[nodiscard]] static std::string answer_to(const std::vector<TokenId>& tokens);

  // Faults. Each may be set while runs are under way.
  /// The next `count` runs fail with `status`.
  void fail_next_runs(std::uint32_t count, Status status);
  /// The next `count` injections are found unusable: the run falls back to text ("state_rejected").
  void reject_next_injections(std::uint32_t count);
  /// Every run takes at least so long, in steps of a millisecond between which cancellation is
  /// polled.
  void set_delay(std::chrono::milliseconds delay);
  /// Sessions vanish, as they may at any time.
  void drop_all_sessions();

  [[nodiscard]] std::vector<FakeCall> calls() const;
  void clear_calls();

 private:
  class Run;

  [[nodiscard]] Result<RunResult> run_locked(const RunRequest& request, FakeCall& call);
  [[nodiscard]] Status wait(const RunRequest& request);
  CachedSequence& open_session(const std::string& name);

  const FakeEngineOptions options_;
  EngineInfo info_;
  FakeTokenizer tokenizer_;
  FakeChatFormat chat_format_;

  TurnMutex running_;         // one run at a time, in the order of asking; guards sessions_
  mutable std::mutex mutex_;  // guards what follows; never held while running
  std::vector<FakeCall> calls_;
  std::uint32_t failures_ = 0;
  Status failure_;
  std::uint32_t rejections_ = 0;
  std::chrono::milliseconds delay_{0};

  struct FakeSession {
    CachedSequence cached;
    std::uint64_t last_use = 0;
  };
  std::map<std::string, FakeSession> sessions_;
  std::uint64_t clock_ = 0;
};

}  // namespace inferscale
