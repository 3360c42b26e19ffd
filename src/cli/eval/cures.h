#pragma once

#include <vector>

#include "cli/eval/arm.h"
#include "cli/eval/record_edit.h"
#include "engine/engine.h"

namespace inferscale::cli {

/// What a cure works on: the facts' records in prompt order, behind a header.
struct CureInput {
  Engine& engine;
  Segment header;                           ///< with its lease
  std::vector<std::vector<TokenId>> lines;  ///< [facts] token ids
  std::vector<RecordPtr> records;           ///< [facts] encoded apart
  std::vector<RecordPtr> joint;             ///< [facts] of one prefill; only for the joint cures
};

/// The records to inject instead. Facts shorter than the cure's number of tokens are replaced
/// whole. Errors: those of the engine.
[[nodiscard]] Result<std::vector<RecordPtr>> apply_cure(const EvalArm& arm, const CureInput& input);

}  // namespace inferscale::cli
