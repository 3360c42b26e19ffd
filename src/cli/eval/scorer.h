#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "cli/eval/metrics.h"
#include "engine/engine.h"

namespace inferscale::cli {

/// Token runs whose probability an arm is asked for, each directly behind the prompt.
struct AnswerPaths {
  std::vector<TokenId> gold;
  std::vector<TokenId> reference;  ///< what the reference arm answers; may be empty
  std::vector<std::vector<TokenId>> distractors;
};

/// What an arm says and how probable it finds the paths.
struct ArmScores {
  LogProbs gold;        ///< [gold tokens][vocabulary]
  LogProbs reference;   ///< [reference tokens][vocabulary]
  double gold_nll = 0;  ///< mean over the path, nats
  std::vector<double> distractor_nll;
  std::vector<TokenId> answer;  ///< greedy, without the end token
  std::string answer_text;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t injected = 0;
  std::uint32_t prefilled = 0;
  double ttft_ms = 0;  ///< from the leased records to the first token
};

enum class PromptMode {
  kInject,  ///< segments with a lease are injected; an error if one is not
  kText,    ///< everything is prefilled
  kSplit,   ///< everything is prefilled, in two batches: the noise floor
};

/// Runs arms of questions on an engine, one after the other. Not thread-safe; several may share an
/// engine.
class Scorer {
 public:
  /// Borrows the engine. `answer_tokens`: of the greedy answer, at most.
  Scorer(Engine& engine, std::uint32_t answer_tokens, const std::atomic<bool>* cancelled)
      : engine_(engine), answer_tokens_(answer_tokens), cancelled_(cancelled) {}

  /// The prompt is plan, then tail (not empty). Errors: those of the engine; kInternal when
  /// something else was injected than the mode says.
  [[nodiscard]] Result<ArmScores> run(const std::vector<Segment>& plan,
                                      const std::vector<TokenId>& tail, const AnswerPaths& paths,
                                      PromptMode mode);

  /// As `run` in mode kText, with the arm's own greedy answer for a reference path, which it gives
  /// back in `answer`.
  [[nodiscard]] Result<ArmScores> run_reference(const std::vector<Segment>& plan,
                                                const std::vector<TokenId>& tail,
                                                AnswerPaths paths);

  /// The KV of [begin, end) pieces of a joint prefill of `plan`, one record for each entry of
  /// `metas`, which go with the plan's last segments; `tail` follows. Errors: those of the engine.
  [[nodiscard]] Result<std::vector<std::shared_ptr<const Record>>> capture_joint(
      const std::vector<Segment>& plan, const std::vector<TokenId>& tail,
      const std::vector<RecordMeta>& metas);

 private:
  [[nodiscard]] RunRequest request(const std::vector<Segment>& plan, PromptMode mode) const;
  Status prefill_half(const std::vector<Segment>& plan);
  Status generate(const std::vector<Segment>& plan, const std::vector<TokenId>& tail,
                  PromptMode mode, ArmScores& scores);
  Result<LogProbs> score(const std::vector<Segment>& plan, const std::vector<TokenId>& tail,
                         const std::vector<TokenId>& path, PromptMode mode);
  Status score_paths(const std::vector<Segment>& plan, const std::vector<TokenId>& tail,
                     const AnswerPaths& paths, PromptMode mode, ArmScores& scores);

  Engine& engine_;
  std::uint32_t answer_tokens_;
  const std::atomic<bool>* cancelled_;
  std::string arm_;  // session and salt of one arm: it finds nothing of others in an engine's cache
};

}  // namespace inferscale::cli
