#include "catalog/filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/strict_json.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFilterBytes = 16U << 10;
constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxConditions = 64;
// Two levels of JSON for each level of the filter ({"AND":[...]}), operators and lists on top.
constexpr int kMaxJsonDepth = 2 * kMaxDepth + 4;

constexpr const char* kReserved[] = {"user",    "agent",    "run",    "tenant",
                                     "user_id", "agent_id", "run_id", "tenant_id"};

struct OpName {
  const char* name;
  Filter::Op op;
};
constexpr OpName kOps[] = {
    {"eq", Filter::Op::kEq},
    {"ne", Filter::Op::kNe},
    {"gt", Filter::Op::kGt},
    {"gte", Filter::Op::kGte},
    {"lt", Filter::Op::kLt},
    {"lte", Filter::Op::kLte},
    {"in", Filter::Op::kIn},
    {"nin", Filter::Op::kNin},
    {"contains", Filter::Op::kContains},
    {"icontains", Filter::Op::kIcontains},
};
constexpr const char* kOpList = "eq, ne, gt, gte, lt, lte, in, nin, contains, icontains";

bool is_time(const std::string& field) { return field == "event_time" || field == "ingest_time"; }

bool is_order(Filter::Op op) {
  return op == Filter::Op::kGt || op == Filter::Op::kGte || op == Filter::Op::kLt ||
         op == Filter::Op::kLte;
}

bool is_list(Filter::Op op) { return op == Filter::Op::kIn || op == Filter::Op::kNin; }

bool is_contains(Filter::Op op) {
  return op == Filter::Op::kContains || op == Filter::Op::kIcontains;
}

class Parser {
 public:
  Result<Filter> object(const json& value, int depth) {
    if (!value.is_object()) {
      return invalid_argument("filter: AND, OR and NOT take objects such as {\"city\":\"Graz\"}");
    }
    if (depth > kMaxDepth) {
      return invalid_argument(fmt::format("filter: nested deeper than {} levels", kMaxDepth));
    }
    Filter all{Filter::Op::kAnd, "", {}, {}};
    for (const auto& [key, operand] : value.items()) {
      INFERSCALE_ASSIGN_OR_RETURN(Filter child, member(key, operand, depth));
      all.children.push_back(std::move(child));
    }
    if (all.children.empty()) {
      return Filter();
    }
    return all.children.size() == 1 ? std::move(all.children.front()) : std::move(all);
  }

 private:
  Result<Filter> member(const std::string& key, const json& operand, int depth) {
    if (key == "AND" || key == "OR" || key == "NOT") {
      return group(key, operand, depth);
    }
    if (std::find(std::begin(kReserved), std::end(kReserved), key) != std::end(kReserved)) {
      return invalid_argument(fmt::format(
          "filter: \"{}\" is part of the scope, which a filter cannot change; give it as the scope "
          "of the request",
          key));
    }
    if (key.empty()) {
      return invalid_argument("filter: a metadata key must not be empty");
    }
    return field(key, operand);
  }

  Result<Filter> group(const std::string& key, const json& operand, int depth) {
    Filter filter;
    filter.op = key == "AND" ? Filter::Op::kAnd : key == "OR" ? Filter::Op::kOr : Filter::Op::kNot;
    const bool single = filter.op == Filter::Op::kNot && operand.is_object();
    if (!single && (!operand.is_array() || operand.empty())) {
      return invalid_argument(
          fmt::format("filter: \"{}\" takes a list of conditions that is not empty", key));
    }
    const auto add = [&](const json& item) -> Status {
      INFERSCALE_ASSIGN_OR_RETURN(Filter child, object(item, depth + 1));
      filter.children.push_back(std::move(child));
      return Status();
    };
    if (single) {
      INFERSCALE_RETURN_IF_ERROR(add(operand));
      return filter;
    }
    for (const json& item : operand) {
      INFERSCALE_RETURN_IF_ERROR(add(item));
    }
    return filter;
  }

  Result<Filter> field(const std::string& key, const json& operand) {
    if (operand.is_string() && operand.get_ref<const std::string&>() == "*") {
      INFERSCALE_RETURN_IF_ERROR(count_condition());
      return Filter{Filter::Op::kExists, key, {}, {}};
    }
    if (operand.is_array()) {
      return condition(key, Filter::Op::kIn, operand);
    }
    if (!operand.is_object()) {
      return condition(key, Filter::Op::kEq, operand);
    }
    Filter all{Filter::Op::kAnd, "", {}, {}};
    for (const auto& item : operand.items()) {
      const std::string& name = item.key();
      const auto* const op = std::find_if(std::begin(kOps), std::end(kOps),
                                          [&](const OpName& row) { return name == row.name; });
      if (op == std::end(kOps)) {
        return invalid_argument(fmt::format(
            "filter: unknown operator \"{}\" for \"{}\"; use one of {}", name, key, kOpList));
      }
      INFERSCALE_ASSIGN_OR_RETURN(Filter child, condition(key, op->op, item.value()));
      all.children.push_back(std::move(child));
    }
    if (all.children.empty()) {
      return invalid_argument(
          fmt::format("filter: \"{}\" has an empty condition; use one of {}", key, kOpList));
    }
    return all.children.size() == 1 ? std::move(all.children.front()) : std::move(all);
  }

  Result<Filter> condition(const std::string& key, Filter::Op op, const json& operand) {
    Filter filter{op, key, {}, {}};
    if (!is_list(op)) {
      INFERSCALE_RETURN_IF_ERROR(add_operand(operand, filter));
      return filter;
    }
    if (!operand.is_array() || operand.empty()) {
      return invalid_argument(
          fmt::format("filter: \"in\" and \"nin\" of \"{}\" take a list that is not empty", key));
    }
    for (const json& item : operand) {
      INFERSCALE_RETURN_IF_ERROR(add_operand(item, filter));
    }
    return filter;
  }

  Status add_operand(const json& operand, Filter& filter) {
    INFERSCALE_RETURN_IF_ERROR(count_condition());
    const bool accepted = is_time(filter.field) ? operand.is_string() && !is_contains(filter.op)
                          : is_order(filter.op) ? operand.is_string() || operand.is_number()
                          : filter.op == Filter::Op::kIcontains ? operand.is_string()
                                                                : operand.is_primitive();
    if (!accepted) {
      return invalid_argument(fmt::format(
          "filter: \"{}\" does not accept {}{}", filter.field, operand.dump(-1, ' ', true),
          is_time(filter.field) ? "; compare it with a time such as \"2025-02-03T09:30:00Z\""
          : is_order(filter.op) ? "; gt, gte, lt and lte take a number or a string"
                                : "; give a string, a number, true, false or null"));
    }
    if (is_time(filter.field)) {
      const auto time = parse_rfc3339(operand.get_ref<const std::string&>());
      if (!time.ok()) {
        return time.status().with_context(fmt::format("filter: \"{}\"", filter.field));
      }
    }
    filter.values.push_back(operand.dump());
    return Status();
  }

  Status count_condition() {
    return ++conditions_ <= kMaxConditions
               ? Status()
               : invalid_argument(
                     fmt::format("filter: more than {} conditions or list items", kMaxConditions));
  }

  std::size_t conditions_ = 0;
};

}  // namespace

Result<Filter> parse_filter(std::string_view text) {
  INFERSCALE_ASSIGN_OR_RETURN(const json parsed,
                              parse_json_object("filter", text, kMaxFilterBytes, kMaxJsonDepth));
  return Parser().object(parsed, 1);
}

}  // namespace inferscale
