#include "catalog/sqlite/row_checksum.h"

#include <fmt/format.h>

#include <cstring>

#include "base/hash.h"

namespace inferscale::sqlite {
namespace {

constexpr ChecksummedTable kTables[] = {
    {"facts", "id, scope, version, ingest_time, event_time, event_offset, text, metadata",
     "'fact ' || id"},
    {"fact_history",
     "fact, version, valid_from, valid_to, event_time, event_offset, text, metadata",
     "'version ' || version || ' of fact ' || coalesce((SELECT id FROM facts WHERE pk = fact), "
     "'?')"},
    {"fact_sources", "fact, position, turn_id",
     "'citation ' || position || ' of fact ' || coalesce((SELECT id FROM facts WHERE pk = fact),"
     " '?')"},
    {"turns", "scope, id, event_time, event_offset, speaker, role, text", "'turn row ' || pk"},
    {"epochs", "owner, epoch", "'epoch row ' || pk"},
};

void sql_checksum(sqlite3_context* context, int count, sqlite3_value** values) {
  HashMessage message;
  for (int i = 0; i < count; ++i) {
    const int type = sqlite3_value_type(values[i]);
    message.add_u32(static_cast<std::uint32_t>(type));
    if (type == SQLITE_INTEGER) {
      message.add_u64(static_cast<std::uint64_t>(sqlite3_value_int64(values[i])));
    } else if (type != SQLITE_NULL) {
      const auto* data = static_cast<const std::byte*>(sqlite3_value_blob(values[i]));
      message.add_bytes({data, static_cast<std::size_t>(sqlite3_value_bytes(values[i]))});
    }
  }
  std::int64_t sum = 0;
  std::memcpy(&sum, xxh3_128(message.bytes()).bytes.data(), sizeof(sum));
  sqlite3_result_int64(context, sum);
}

}  // namespace

std::span<const ChecksummedTable> checksummed_tables() { return kTables; }

Status register_row_checksum(Connection& connection) {
  const int rc = sqlite3_create_function_v2(connection.raw(), "inferscale_checksum", -1,
                                            SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_DIRECTONLY,
                                            nullptr, &sql_checksum, nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? Status() : connection.error(rc);
}

Status for_each_unsound_row(
    Connection& connection,
    const std::function<void(const ChecksummedTable& table, const std::string& key)>& visit) {
  for (const ChecksummedTable& table : kTables) {
    INFERSCALE_ASSIGN_OR_RETURN(
        Statement statement, connection.prepare_once(fmt::format(
                                 "SELECT {} FROM {} WHERE checksum IS NOT inferscale_checksum({})",
                                 table.key, table.table, table.columns)));
    INFERSCALE_RETURN_IF_ERROR(
        statement.for_each([&](const Statement& row) { visit(table, row.text(0)); }));
  }
  return Status();
}

Status unsound_row(std::string_view what) {
  return data_loss(fmt::format(
      "catalog: {} does not match its checksum, its stored content was damaged: `inferscale "
      "verify` "
      "lists all such rows; restore a backup, or erase it (`delete`), or let `inferscale repair` "
      "accept what is there and then read it",
      what));
}

Result<std::int64_t> renew_checksums(Connection& connection) {
  std::int64_t renewed = 0;
  for (const ChecksummedTable& table : kTables) {
    INFERSCALE_ASSIGN_OR_RETURN(
        Statement statement,
        connection.prepare_once(fmt::format("UPDATE {0} SET checksum = inferscale_checksum({1})"
                                            " WHERE checksum IS NOT inferscale_checksum({1})",
                                            table.table, table.columns)));
    INFERSCALE_RETURN_IF_ERROR(statement.run());
    renewed += connection.changes();
  }
  return renewed;
}

}  // namespace inferscale::sqlite
