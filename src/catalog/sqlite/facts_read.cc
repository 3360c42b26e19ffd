#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/filter_sql.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

constexpr std::int64_t kNoLimit = -1;

/// "s" and the sequence of the last fact that was given.
Result<std::int64_t> parse_cursor(std::string_view cursor) {
  std::int64_t after = 0;
  if (cursor.empty()) {
    return after;
  }
  const char* const end = cursor.data() + cursor.size();
  const auto [stop, error] = std::from_chars(cursor.data() + 1, end, after);
  if (cursor.front() != 's' || error != std::errc() || stop != end || after < 0) {
    return invalid_argument("cursor: not one that a previous page gave; start without a cursor");
  }
  return after;
}

Result<CatalogCounts> count_scopes(Connection& connection, const std::vector<ScopeRow>& scopes) {
  CatalogCounts counts;
  counts.scopes = scopes.size();
  const auto add = [&connection](std::uint64_t& total, std::string_view sql, auto key) -> Status {
    INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t n, connection.integer(sql, key));
    total += static_cast<std::uint64_t>(n);
    return Status();
  };
  for (const ScopeRow& scope : scopes) {
    std::uint64_t superseded = 0;
    std::uint64_t facts = 0;
    INFERSCALE_RETURN_IF_ERROR(add(facts, "SELECT count(*) FROM facts WHERE scope = ?1", scope.pk));
    INFERSCALE_RETURN_IF_ERROR(
        add(superseded,
            "SELECT count(*) FROM facts f JOIN fact_history h ON h.fact = f.pk WHERE f.scope = ?1",
            scope.pk));
    INFERSCALE_RETURN_IF_ERROR(
        add(counts.turns, "SELECT count(*) FROM turns WHERE scope = ?1", scope.pk));
    INFERSCALE_RETURN_IF_ERROR(
        add(counts.vectors,
            "SELECT count(*) FROM facts f JOIN vectors v ON v.fact = f.pk WHERE f.scope = ?1",
            scope.pk));
    INFERSCALE_RETURN_IF_ERROR(
        add(counts.records, "SELECT count(*) FROM records WHERE scope_hash = ?1 AND retired = 0",
            scope_hash(scope.scope)));
    counts.facts += facts;
    counts.versions += facts + superseded;
  }
  return counts;
}

}  // namespace

Result<Fact> SqliteCatalog::get_fact(const Scope& request, std::string_view id) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(FactRow row, readable_fact(reader.connection(), request, id));
  INFERSCALE_RETURN_IF_ERROR(check_sound(row));
  return std::move(row.fact);
}

Result<std::vector<Fact>> SqliteCatalog::get_facts(const Scope& request,
                                                   std::span<const std::string> ids) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  std::vector<Fact> facts;
  facts.reserve(ids.size());
  for (const std::string& id : ids) {
    INFERSCALE_ASSIGN_OR_RETURN(std::optional<FactRow> row, find_fact(reader.connection(), id));
    if (row && scope_permits(request, row->fact.scope)) {
      INFERSCALE_RETURN_IF_ERROR(check_sound(*row));
      facts.push_back(std::move(row->fact));
    }
  }
  return facts;
}

Result<FactPage> SqliteCatalog::list_facts(const Scope& request, const Filter& filter,
                                           std::size_t limit, std::string_view cursor) {
  if (limit == 0 || limit > INT32_MAX) {
    return invalid_argument("limit must be from 1 to 2147483647");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t after, parse_cursor(cursor));
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeRow> scopes,
                              readable_scopes(connection, request));
  INFERSCALE_ASSIGN_OR_RETURN(
      std::vector<std::int64_t> pks,
      select_facts(connection, scopes, filter, after, static_cast<std::int64_t>(limit) + 1));
  FactPage page;
  if (pks.size() > limit) {
    pks.resize(limit);
    page.next_cursor = fmt::format("s{}", pks.back());
  }
  INFERSCALE_ASSIGN_OR_RETURN(page.facts, load_facts(connection, pks));
  return page;
}

Result<std::vector<FactVersion>> SqliteCatalog::history(const Scope& request, std::string_view id) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  INFERSCALE_ASSIGN_OR_RETURN(const FactRow row, readable_fact(connection, request, id));
  INFERSCALE_RETURN_IF_ERROR(check_sound(row));
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<FactVersion> versions, load_history(connection, row.pk));
  const Fact& live = row.fact;
  versions.push_back({live.version, "", live.text, live.metadata, live.event_time,
                      live.event_offset_minutes, live.ingest_time, std::nullopt});
  for (FactVersion& version : versions) {
    version.event = version.version == 1 ? "ADD" : "UPDATE";
  }
  return versions;
}

Result<std::vector<Turn>> SqliteCatalog::get_turns(const Scope& request,
                                                   std::span<const std::string> ids) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<ScopeRow> scopes,
                              readable_scopes(reader.connection(), request));
  // The request's own scope first: an id is unique within a scope only.
  std::stable_partition(scopes.begin(), scopes.end(),
                        [&](const ScopeRow& row) { return row.scope == request; });
  std::vector<Turn> turns;
  for (const std::string& id : ids) {
    for (const ScopeRow& scope : scopes) {
      INFERSCALE_ASSIGN_OR_RETURN(std::optional<Turn> turn,
                                  find_turn(reader.connection(), scope, id));
      if (turn) {
        turns.push_back(*std::move(turn));
        break;
      }
    }
  }
  return turns;
}

Result<std::vector<std::string>> SqliteCatalog::matching_ids(const Scope& request,
                                                             const Filter& filter) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeRow> scopes,
                              readable_scopes(connection, request));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> pks,
                              select_facts(connection, scopes, filter, 0, kNoLimit));
  INFERSCALE_ASSIGN_OR_RETURN(Statement statement,
                              connection.prepare("SELECT id FROM facts WHERE pk = ?1"));
  std::vector<std::string> ids;
  ids.reserve(pks.size());
  for (const std::int64_t pk : pks) {
    INFERSCALE_RETURN_IF_ERROR(statement.with(pk).step().status());
    ids.push_back(statement.text(0));
  }
  return ids;
}

Result<CatalogCounts> SqliteCatalog::counts(const Scope& request) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeRow> scopes,
                              readable_scopes(reader.connection(), request));
  return count_scopes(reader.connection(), scopes);
}

Result<CatalogCounts> SqliteCatalog::counts_all() {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      reader.connection().prepare(
          "SELECT (SELECT count(*) FROM facts), (SELECT count(*) FROM turns),"
          " (SELECT count(*) FROM fact_history), (SELECT count(*) FROM vectors),"
          " (SELECT count(*) FROM records WHERE retired = 0), (SELECT count(*) FROM scopes)"));
  INFERSCALE_RETURN_IF_ERROR(statement.step().status());
  const auto column = [&](int i) { return static_cast<std::uint64_t>(statement.integer(i)); };
  return CatalogCounts{column(0), column(1), column(0) + column(2),
                       column(3), column(4), column(5)};
}

}  // namespace inferscale::sqlite
