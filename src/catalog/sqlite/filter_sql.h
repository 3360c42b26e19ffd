#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "catalog/filter.h"
#include "catalog/sqlite/connection.h"

namespace inferscale::sqlite {

/// A condition on the table alias `f` of facts. `sql` holds no byte of the filter's keys and
/// values: they are bound, in order.
struct SqlCondition {
  std::string sql;
  std::vector<std::variant<std::int64_t, double, std::string>> values;

  /// Binds the values to parameters first_index, first_index + 1, ...
  void bind(Statement& statement, int first_index) const;
};

/// Errors: kInvalidArgument for a filter that parse_filter would not have made.
[[nodiscard]] Result<SqlCondition> filter_to_sql(const Filter& filter);

/// Registers the SQL function that `icontains` uses. Errors: kInternal.
[[nodiscard]] Status register_filter_functions(Connection& connection);

}  // namespace inferscale::sqlite
