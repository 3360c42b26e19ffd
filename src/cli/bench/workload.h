#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "inferscale/memory.h"
#include "prompt/prompt_builder.h"

namespace inferscale::cli {

/// Sizes of the workload in tokens (docs/cli.md).
struct WorkloadShape {
  std::uint32_t header = 40;
  std::uint32_t fact = 28;  ///< a fact's line, date and newline included, within 2 of this
  std::uint32_t question = 30;
};

/// A made-up fact and the day that it is dated.
struct BenchFact {
  std::string text;
  std::string event_time;  ///< RFC 3339
};

/// Words of the asked lengths for one model: a header, facts, a question. Where a tokenizer cannot
/// give a length exactly, the nearest below it is taken; the figures state what was reached.
class Workload {
 public:
  /// Borrows the engine. Errors: kUnsupported (chat template), kInvalidArgument.
  [[nodiscard]] static Result<Workload> create(const Engine& engine, std::uint32_t n_facts,
                                               const WorkloadShape& shape);

  [[nodiscard]] const PromptBuilder& prompt() const { return *prompt_; }
  [[nodiscard]] const std::vector<BenchFact>& facts() const { return facts_; }
  [[nodiscard]] const std::string& question() const { return question_; }
  [[nodiscard]] const std::string& system_prompt() const { return options_.system_prompt; }
  [[nodiscard]] Result<std::vector<TokenId>> fact_tokens(const BenchFact& fact) const;

 private:
  Workload() = default;
  PromptOptions options_;
  std::optional<PromptBuilder> prompt_;
  std::vector<BenchFact> facts_;
  std::string question_;
};

}  // namespace inferscale::cli
