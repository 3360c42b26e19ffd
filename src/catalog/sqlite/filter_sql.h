#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "catalog/filter.h"
#include "catalog/sqlite/connection.h"
#include "catalog/sqlite/scopes.h"

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

/// Keys of the facts of these scopes that match, after `after`, in ingest order; `limit` < 0: all.
/// One index range per scope, so that a page costs its own rows and not the whole scope's.
[[nodiscard]] Result<std::vector<std::int64_t>> select_facts(Connection& connection,
                                                             const std::vector<ScopeRow>& scopes,
                                                             const Filter& filter,
                                                             std::int64_t after,
                                                             std::int64_t limit);

/// Registers the SQL function that `icontains` uses. Errors: kInternal.
[[nodiscard]] Status register_filter_functions(Connection& connection);

}  // namespace inferscale::sqlite
