#pragma once

#include <cstdint>
#include <span>

#include "catalog/sqlite/connection.h"
#include "inferscale/status.h"

namespace inferscale::sqlite {

/// "ISCA": tells a catalog from any other SQLite file.
inline constexpr std::int64_t kApplicationId = 0x49534341;

/// One step of the schema: brings a database of the version before it to `version`.
struct Migration {
  int version;
  const char* sql;
};

/// All steps, oldest first; the last one's version is what this program writes.
[[nodiscard]] std::span<const Migration> migrations();

/// Applies the steps that are missing, each in its own transaction together with its
/// `PRAGMA user_version`. REQUIRES: the keyword tokenizer is registered.
/// Errors: kUnsupported (newer than this program), kDataLoss (some other program's database).
[[nodiscard]] Status migrate(Connection& connection, std::span<const Migration> steps);

/// Journal, durability and size settings of the writing connection.
[[nodiscard]] Status configure_writer(Connection& connection, std::uint64_t max_bytes);

}  // namespace inferscale::sqlite
