#include "catalog/sqlite/filter_sql.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/strict_json.h"
#include "catalog/sqlite/fold_case.h"

namespace inferscale::sqlite {
namespace {

using nlohmann::json;
using Op = Filter::Op;

constexpr int kMaxDepth = 32;  // of filters built in code; parse_filter allows less

const char* sql_operator(Op op) {
  switch (op) {
    case Op::kGt:
      return ">";
    case Op::kGte:
      return ">=";
    case Op::kLt:
      return "<";
    case Op::kLte:
      return "<=";
    default:
      return "=";
  }
}

class Builder {
 public:
  Result<SqlCondition> build(const Filter& filter) {
    INFERSCALE_RETURN_IF_ERROR(add(filter, 0));
    return std::move(out_);
  }

 private:
  Status add(const Filter& filter, int depth) {
    if (depth > kMaxDepth) {
      return invalid_argument("filter: nested too deeply");
    }
    switch (filter.op) {
      case Op::kAll:
        out_.sql += "1";
        return Status();
      case Op::kAnd:
        return join(filter, " AND ", "1", depth);
      case Op::kOr:
        return join(filter, " OR ", "0", depth);
      case Op::kNot:  // none of the children may match
        out_.sql += "NOT ";
        return join(filter, " OR ", "0", depth);
      default:
        break;
    }
    const bool negated = filter.op == Op::kNe || filter.op == Op::kNin;
    out_.sql += negated ? "NOT (" : "(";
    const bool time = filter.field == "event_time" || filter.field == "ingest_time";
    INFERSCALE_RETURN_IF_ERROR(time ? add_time(filter) : add_metadata(filter));
    out_.sql += ")";
    return Status();
  }

  Status join(const Filter& filter, const char* separator, const char* if_empty, int depth) {
    out_.sql += "(";
    for (std::size_t i = 0; i < filter.children.size(); ++i) {
      out_.sql += i > 0 ? separator : "";
      INFERSCALE_RETURN_IF_ERROR(add(filter.children[i], depth + 1));
    }
    out_.sql += filter.children.empty() ? if_empty : "";
    out_.sql += ")";
    return Status();
  }

  Status add_time(const Filter& filter) {
    // The column name is one of two literals, never text of the filter.
    const std::string column = filter.field == "event_time" ? "f.event_time" : "f.ingest_time";
    if (filter.op == Op::kExists) {
      out_.sql += column + " IS NOT NULL";
      return Status();
    }
    INFERSCALE_RETURN_IF_ERROR(check_operands(filter));
    // A missing event time makes every comparison false, not unknown, so that NOT turns it round.
    out_.sql += column + " IS NOT NULL AND (";
    for (std::size_t i = 0; i < filter.values.size(); ++i) {
      const json operand = json::parse(filter.values[i], nullptr, false);
      if (!operand.is_string()) {
        return invalid_argument("filter: a time is compared with an RFC 3339 string");
      }
      INFERSCALE_ASSIGN_OR_RETURN(const ParsedTime time,
                                  parse_rfc3339(operand.get_ref<const std::string&>()));
      out_.sql += (i > 0 ? " OR " : "") + column + sql_operator(filter.op) + "?";
      out_.values.emplace_back(time.time);
    }
    out_.sql += ")";
    return Status();
  }

  Status add_metadata(const Filter& filter) {
    // json_each instead of a JSON path: the key is compared as a value, so that no key needs
    // quoting and every key can be asked for.
    out_.sql += "EXISTS(SELECT 1 FROM json_each(f.metadata) m WHERE m.key=?";
    out_.values.emplace_back(filter.field);
    if (filter.op != Op::kExists) {
      INFERSCALE_RETURN_IF_ERROR(check_operands(filter));
      out_.sql += " AND (";
      for (std::size_t i = 0; i < filter.values.size(); ++i) {
        out_.sql += i > 0 ? " OR " : "";
        const json operand = json::parse(filter.values[i], nullptr, false);
        INFERSCALE_RETURN_IF_ERROR(filter.op == Op::kContains ? add_contains(operand)
                                   : filter.op == Op::kIcontains
                                       ? add_icontains(operand)
                                       : compare("m", filter.op, operand));
      }
      out_.sql += ")";
    }
    out_.sql += ")";
    return Status();
  }

  /// `alias` is a row of json_each; values of different types are never equal.
  Status compare(const std::string& alias, Op op, const json& operand) {
    const bool order = op != Op::kEq && op != Op::kNe && op != Op::kIn && op != Op::kNin;
    if (operand.is_string()) {
      out_.sql += alias + ".type='text' AND " + alias + ".atom" + sql_operator(op) + "?";
      out_.values.emplace_back(operand.get<std::string>());
    } else if (operand.is_number()) {
      out_.sql +=
          alias + ".type IN('integer','real') AND " + alias + ".atom" + sql_operator(op) + "?";
      if (operand.is_number_integer() && !operand.is_number_unsigned()) {
        out_.values.emplace_back(operand.get<std::int64_t>());
      } else if (operand.is_number_unsigned() && operand.get<std::uint64_t>() <= INT64_MAX) {
        out_.values.emplace_back(operand.get<std::int64_t>());
      } else {
        out_.values.emplace_back(operand.get<double>());
      }
    } else if (!order && (operand.is_boolean() || operand.is_null())) {
      out_.sql += alias + ".type=?";
      out_.values.emplace_back(std::string(operand.dump()));
    } else {
      return invalid_argument("filter: an operand must be a JSON scalar that the operator accepts");
    }
    return Status();
  }

  Status add_contains(const json& operand) {
    if (operand.is_string()) {
      out_.sql += "m.type='text' AND instr(m.atom,?)>0 OR ";
      out_.values.emplace_back(operand.get<std::string>());
    }
    out_.sql += "m.type='array' AND EXISTS(SELECT 1 FROM json_each(m.value) e WHERE ";
    INFERSCALE_RETURN_IF_ERROR(compare("e", Op::kEq, operand));
    out_.sql += ")";
    return Status();
  }

  Status add_icontains(const json& operand) {
    if (!operand.is_string()) {
      return invalid_argument("filter: icontains takes a string");
    }
    out_.sql += "m.type='text' AND instr(inferscale_fold(m.atom),?)>0";
    out_.values.emplace_back(fold_case(operand.get_ref<const std::string&>()));
    return Status();
  }

  static Status check_operands(const Filter& filter) {
    return filter.values.empty() ? invalid_argument("filter: an operator without an operand")
                                 : Status();
  }

  SqlCondition out_;
};

void sql_fold(sqlite3_context* context, int /*count*/, sqlite3_value** arguments) {
  const auto* data = reinterpret_cast<const char*>(sqlite3_value_text(arguments[0]));
  if (data == nullptr) {
    sqlite3_result_null(context);
    return;
  }
  const auto size = static_cast<std::size_t>(sqlite3_value_bytes(arguments[0]));
  try {
    const std::string folded = fold_case({data, size});
    sqlite3_result_text64(context, folded.data(), folded.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  } catch (const std::bad_alloc&) {  // must not pass through SQLite's C frames
    sqlite3_result_error_nomem(context);
  }
}

}  // namespace

void SqlCondition::bind(Statement& statement, int first_index) const {
  for (const auto& value : values) {
    const int index = first_index++;
    std::visit(
        [&](const auto& content) {
          if constexpr (std::is_same_v<std::decay_t<decltype(content)>, std::string>) {
            statement.bind(index, std::string_view(content));
          } else {
            statement.bind(index, content);
          }
        },
        value);
  }
}

Result<SqlCondition> filter_to_sql(const Filter& filter) { return Builder().build(filter); }

Result<std::vector<std::int64_t>> select_facts(Connection& connection,
                                               const std::vector<ScopeRow>& scopes,
                                               const Filter& filter, std::int64_t after,
                                               std::int64_t limit) {
  INFERSCALE_ASSIGN_OR_RETURN(const SqlCondition condition, filter_to_sql(filter));
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare_once("SELECT f.pk FROM facts f WHERE f.scope = ?1 AND f.pk > ?2 AND " +
                              condition.sql + " ORDER BY f.pk LIMIT " + std::to_string(limit)));
  std::vector<std::int64_t> pks;
  for (const ScopeRow& scope : scopes) {
    statement.with(scope.pk, after);
    condition.bind(statement, 3);
    INFERSCALE_RETURN_IF_ERROR(
        statement.for_each([&](const Statement& row) { pks.push_back(row.integer(0)); }));
  }
  std::sort(pks.begin(), pks.end());
  if (limit >= 0 && pks.size() > static_cast<std::size_t>(limit)) {
    pks.resize(static_cast<std::size_t>(limit));
  }
  return pks;
}

Status register_filter_functions(Connection& connection) {
  const int rc = sqlite3_create_function_v2(connection.raw(), "inferscale_fold", 1,
                                            SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_DIRECTONLY,
                                            nullptr, &sql_fold, nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? Status() : connection.error(rc);
}

}  // namespace inferscale::sqlite
