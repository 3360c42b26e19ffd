#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/status.h"

namespace inferscale::cli {

enum class ArmKind {
  kNone,    ///< header and question
  kText,    ///< the facts as text: what the others are compared with
  kFloor,   ///< the same, prefilled in other batches: the noise floor
  kFacts,   ///< the facts as text without the turns that a question needs
  kInject,  ///< the facts from their records
};
[[nodiscard]] const char* arm_kind_name(ArmKind kind);

/// Something done to the records before they are injected, for experiments.
enum class Cure {
  kNothing,
  kScale,       ///< keys are multiplied by a number (the temperature of APE, arXiv 2502.05431)
  kFirst,       ///< the first n tokens of each fact are computed again behind all before them
  kLast,        ///< the last n tokens of each fact are computed again
  kJointFirst,  ///< the first n rows of each fact are those of a joint prefill: shows what they do
  kJointRest,   ///< all but the first n rows are those of a joint prefill
};

/// One way to answer: CONTEXT[+CURE=NUMBER][@TOP_J], e.g. "names:8@4", "header+first=1".
struct EvalArm {
  ArmKind kind = ArmKind::kText;
  std::string context;  ///< of kInject
  Cure cure = Cure::kNothing;
  double amount = 0;  ///< of the cure
  std::uint32_t top_j = 0;

  [[nodiscard]] std::string cure_spelling() const;  ///< "scale=0.9", "" for none
  /// "names:8 top_j=4 k=50".
  [[nodiscard]] std::string name(std::uint32_t k) const;
};

/// Errors: kInvalidArgument that says what is accepted.
[[nodiscard]] Result<EvalArm> parse_arm(std::string_view text);
/// A list with commas; the same arm twice is refused. Errors: kInvalidArgument.
[[nodiscard]] Result<std::vector<EvalArm>> parse_arms(std::string_view text);

}  // namespace inferscale::cli
