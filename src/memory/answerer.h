#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "inferscale/memory.h"
#include "memory/encoder.h"
#include "memory/header_record.h"
#include "memory/service_core.h"

namespace inferscale {

/// Counts reasons, in the order in which they first appear.
class FallbackCounter {
 public:
  void add(const std::string& reason, std::uint32_t count = 1);
  [[nodiscard]] const std::vector<FallbackCount>& counts() const { return counts_; }

 private:
  std::vector<FallbackCount> counts_;
};

/// A question's facts, tokenised, leased and put in order, ready to run in any arm.
struct PreparedPrompt {
  struct Line {
    Fact fact;
    std::uint32_t rank = 0;  ///< 1 is the best
    std::vector<TokenId> tokens;
    Lease lease;
    RecordKey record;  ///< of the lease, when it is ready
  };
  std::vector<Line> lines;  ///< in prompt order
  std::vector<TokenId> tail;
  FallbackCounter fallbacks;
  std::uint32_t top_j = 0;
  AskTimings timings;  ///< embed, retrieve, lease, plan

  [[nodiscard]] std::uint32_t line_tokens() const;
};

/// Calls `prepare` until nothing was erased while it ran, and notes what its prompt uses: a delete
/// either comes before the prompt, which then holds nothing of it, or counts the answer. Errors:
/// those of `prepare`, kUnavailable.
[[nodiscard]] Result<PreparedPrompt> prepare_noted(
    AnswerRegistry::Use& use, const std::function<Result<PreparedPrompt>()>& prepare);

/// What preparing depends on besides the question.
struct PrepareOptions {
  Scope scope;
  std::string question;
  std::uint32_t k = 10;
  std::optional<std::uint32_t> top_j;  ///< unset: the service's, or the calibrated one
  const std::atomic<bool>* cancelled = nullptr;
  bool inject = true;
  std::string filter;
  std::size_t budget_tokens = 0;  ///< for the fact lines
  const std::map<std::string, std::uint32_t>* already_in_context =
      nullptr;  ///< fact id → version, left out
};

/// Answers questions: retrieve → lease → order → plan → run (architecture §3). Thread-safe.
class Answerer {
 public:
  Answerer(ServiceCore& core, Encoder& encoder) : core_(core), encoder_(encoder) {}

  [[nodiscard]] Result<AskReply> ask(const AskRequest& request);
  [[nodiscard]] Result<CompareReply> compare(const AskRequest& request, std::uint32_t rounds);

  /// Retrieves, tokenises, leases and orders. Facts that do not fit the budget are dropped, lowest
  /// rank first, counted.
  [[nodiscard]] Result<PreparedPrompt> prepare(const EngineParts& parts,
                                               const PrepareOptions& options);
  /// The tokens that facts may take: the context less header, tail, answer and a reserve.
  [[nodiscard]] static std::size_t facts_budget(const EngineParts& parts, std::size_t other_tokens,
                                                std::uint32_t max_tokens);

 private:
  /// What `top_j` is for this prompt. Asked for only when something could be injected: it may have
  /// to be measured.
  Result<std::uint32_t> effective_top_j(const PrepareOptions& options);
  Result<PreparedPrompt> prepare_ask(EngineParts& parts, const AskRequest& request);
  void lease_lines(const EngineParts& parts, const Scope& scope,
                   std::vector<PreparedPrompt::Line>& lines, FallbackCounter& fallbacks);

  ServiceCore& core_;
  Encoder& encoder_;
};

/// What of a request can be refused before a model is loaded for it. Errors: kInvalidArgument.
[[nodiscard]] Status check_ask(const AskRequest& request);

/// Adds the segments of `lines` to a plan; without `with_kv` they are text.
void append_lines(const std::vector<PreparedPrompt::Line>& lines, bool with_kv,
                  std::vector<Segment>& plan);

/// Fills facts, tokens, fallbacks and engine timings of a reply from what the engine reports.
/// `first_line_segment` is the index of the first fact in the plan.
void fill_reply(const PreparedPrompt& prompt, const RunResult& result,
                std::size_t first_line_segment, AskReply& reply);

}  // namespace inferscale
