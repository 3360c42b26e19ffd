#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "catalog/sqlite/connection.h"
#include "inferscale/status.h"

namespace inferscale::sqlite {

/// A table whose rows carry, in the column `checksum`, what `inferscale_checksum` makes of the
/// columns that nothing else could tell to be damaged: text, metadata, ids, times and versions. Not
/// covered: row keys that are given out by the database, and what can be derived again.
struct ChecksummedTable {
  const char* table;
  const char* columns;  ///< the function's arguments, in order
  const char* key;      ///< SQL that names a row to an operator; never what users stored
};

[[nodiscard]] std::span<const ChecksummedTable> checksummed_tables();

/// Adds the SQL function `inferscale_checksum(value, ...)`: 64 bits of XXH3 over the values and
/// their types, as an integer.
[[nodiscard]] Status register_row_checksum(Connection& connection);

/// Calls `visit(table, key)` for every row that does not match its checksum.
[[nodiscard]] Status for_each_unsound_row(
    Connection& connection,
    const std::function<void(const ChecksummedTable& table, const std::string& key)>& visit);

/// The error for one of them. `what`: its kind and id ("fact f_1").
[[nodiscard]] Status unsound_row(std::string_view what);

/// Writes the checksum of every row of the tables that does not match. Returns how many.
[[nodiscard]] Result<std::int64_t> renew_checksums(Connection& connection);

}  // namespace inferscale::sqlite
