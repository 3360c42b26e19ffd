// Everything of a scope, out of one read transaction. Back in: restore.cc.
#include <algorithm>

#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/row_checksum.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

/// Row keys in ingest order. One list of keys is all that an export holds in memory.
Result<std::vector<std::int64_t>> keys_of(Connection& connection,
                                          const std::vector<ScopeRow>& scopes,
                                          std::string_view sql) {
  std::vector<std::int64_t> keys;
  for (const ScopeRow& scope : scopes) {
    INFERSCALE_ASSIGN_OR_RETURN(Statement statement, connection.prepare(sql));
    INFERSCALE_RETURN_IF_ERROR(statement.with(scope.pk).for_each(
        [&](const Statement& row) { keys.push_back(row.integer(0)); }));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

Result<std::uint64_t> count_versions(Connection& connection, const std::vector<ScopeRow>& scopes) {
  std::uint64_t total = 0;
  for (const ScopeRow& scope : scopes) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::int64_t n,
        connection.integer("SELECT count(*) FROM facts f JOIN fact_history h ON h.fact = f.pk"
                           " WHERE f.scope = ?1",
                           scope.pk));
    total += static_cast<std::uint64_t>(n);
  }
  return total;
}

Status visit_turn(Connection& connection, std::int64_t pk, const CatalogVisitor& visitor) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement row,
      connection.prepare(
          "SELECT t.id, o.tenant, o.user, s.agent, s.run, t.speaker, t.role, t.text,"
          " t.event_time, t.event_offset, t.checksum IS inferscale_checksum(t.scope, t.id,"
          "  t.event_time, t.event_offset, t.speaker, t.role, t.text)"
          " FROM turns t JOIN scopes s ON s.pk = t.scope"
          " JOIN owners o ON o.pk = s.owner WHERE t.pk = ?1"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, row.with(pk).step());
  if (!found) {
    return Status();
  }
  if (row.integer(10) != 1) {
    return unsound_row("turn " + row.text(0));
  }
  return visitor.turn(Turn{row.text(0), Scope{row.text(1), row.text(2), row.text(3), row.text(4)},
                           row.text(5), row.text(6), row.text(7), row.integer(8),
                           static_cast<int>(row.integer(9))});
}

Status visit_fact(Connection& connection, std::int64_t pk, const CatalogVisitor& visitor) {
  RestoredFact out;
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<Fact> facts, load_facts(connection, std::span(&pk, 1)));
  if (facts.empty()) {
    return Status();
  }
  out.fact = std::move(facts.front());
  INFERSCALE_ASSIGN_OR_RETURN(out.history, load_history(connection, pk));
  return visitor.fact(out);
}

}  // namespace

Status SqliteCatalog::export_scope(const Scope& request, const CatalogVisitor& visitor) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeRow> scopes,
                              writable_scopes(connection, request));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> turns,
                              keys_of(connection, scopes, "SELECT pk FROM turns WHERE scope = ?1"));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> facts,
                              keys_of(connection, scopes, "SELECT pk FROM facts WHERE scope = ?1"));
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t versions, count_versions(connection, scopes));
  INFERSCALE_RETURN_IF_ERROR(visitor.begin(turns.size(), facts.size(), versions));
  for (const std::int64_t pk : turns) {
    INFERSCALE_RETURN_IF_ERROR(visit_turn(connection, pk, visitor));
  }
  for (const std::int64_t pk : facts) {
    INFERSCALE_RETURN_IF_ERROR(visit_fact(connection, pk, visitor));
  }
  return Status();
}

}  // namespace inferscale::sqlite
