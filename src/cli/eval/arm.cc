#include "cli/eval/arm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "cli/option_values.h"
#include "memory/context_spec.h"

namespace inferscale::cli {
namespace {

struct CureName {
  Cure cure;
  std::string_view name;
  double least;
  double most;
};
constexpr std::array<CureName, 5> kCures = {{
    {Cure::kScale, "scale", 0.5, 2},
    {Cure::kFirst, "first", 1, 64},
    {Cure::kLast, "last", 1, 64},
    {Cure::kJointFirst, "joint_first", 1, 64},
    {Cure::kJointRest, "joint_rest", 1, 64},
}};

constexpr std::uint32_t kMaxTopJ = 64;

template <typename Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

Status parse_cure(std::string_view text, EvalArm& arm) {
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  for (const CureName& known : kCures) {
    if (name != known.name) {
      continue;
    }
    arm.cure = known.cure;
    const bool read =
        equals != std::string_view::npos && parse_number(text.substr(equals + 1), arm.amount);
    const bool in_range = arm.amount >= known.least && arm.amount <= known.most;  // not if NaN
    const bool whole = known.cure == Cure::kScale || arm.amount == std::floor(arm.amount);
    if (!read || !in_range || !whole) {
      return invalid_argument(
          fmt::format("{}: give {}={} to {}", known.name, known.name, known.least, known.most));
    }
    return {};
  }
  return invalid_argument("use scale=, first=, last=, joint_first= or joint_rest=");
}

Status parse_parts(std::string_view text, EvalArm& arm) {
  arm.kind = ArmKind::kInject;
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    if (!parse_number(text.substr(at + 1), arm.top_j) || arm.top_j > kMaxTopJ) {
      return invalid_argument(fmt::format("after @ goes top_j, 0 to {}", kMaxTopJ));
    }
    text = text.substr(0, at);
  }
  if (const std::size_t plus = text.find('+'); plus != std::string_view::npos) {
    INFERSCALE_RETURN_IF_ERROR(parse_cure(text.substr(plus + 1), arm));
    text = text.substr(0, plus);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const ContextSpec context, parse_context_spec(text));
  arm.context = context.spelling();
  return {};
}

}  // namespace

const char* arm_kind_name(ArmKind kind) {
  switch (kind) {
    case ArmKind::kNone:
      return "none";
    case ArmKind::kText:
      return "text";
    case ArmKind::kFloor:
      return "floor";
    case ArmKind::kFacts:
      return "facts";
    case ArmKind::kInject:
      break;
  }
  return "inject";
}

std::string EvalArm::cure_spelling() const {
  const auto found = std::find_if(kCures.begin(), kCures.end(),
                                  [this](const CureName& known) { return known.cure == cure; });
  return found == kCures.end() ? "" : fmt::format("{}={}", found->name, amount);
}

std::string EvalArm::name(std::uint32_t k) const {
  if (kind != ArmKind::kInject) {
    return fmt::format("{} k={}", arm_kind_name(kind), k);
  }
  return fmt::format("{}{}{} top_j={} k={}", context, cure == Cure::kNothing ? "" : "+",
                     cure_spelling(), top_j, k);
}

Result<EvalArm> parse_arm(std::string_view text) {
  EvalArm arm;
  if (const Status status = parse_parts(text, arm); !status.ok()) {
    return status.with_context(fmt::format("arm '{}'", utf8_prefix(text, 64)));
  }
  return arm;
}

Result<std::vector<EvalArm>> parse_arms(std::string_view text) {
  std::vector<EvalArm> arms;
  for (const std::string_view part : split_list(text)) {
    INFERSCALE_ASSIGN_OR_RETURN(EvalArm arm, parse_arm(part));
    const std::string name = arm.name(0);
    if (std::any_of(arms.begin(), arms.end(),
                    [&name](const EvalArm& other) { return other.name(0) == name; })) {
      return invalid_argument(fmt::format("arm '{}': given twice", part));
    }
    arms.push_back(std::move(arm));
  }
  return arms;
}

}  // namespace inferscale::cli
