// Deletion: what goes is collected in temporary tables first, then removed table by table, counted
// by the rows that really went, and read again afterwards.
#include <algorithm>
#include <array>

#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

// In memory (temp_store) and of this connection only.
constexpr const char* kCreateSets =
    "CREATE TEMP TABLE IF NOT EXISTS doomed_scopes(pk INTEGER PRIMARY KEY);"
    "CREATE TEMP TABLE IF NOT EXISTS doomed_owners(pk INTEGER PRIMARY KEY);"
    "CREATE TEMP TABLE IF NOT EXISTS doomed_facts(pk INTEGER PRIMARY KEY);"
    "CREATE TEMP TABLE IF NOT EXISTS doomed_turns(pk INTEGER PRIMARY KEY);"
    "CREATE TEMP TABLE IF NOT EXISTS doomed_records(pk INTEGER PRIMARY KEY);"
    "DELETE FROM temp.doomed_scopes; DELETE FROM temp.doomed_owners;"
    "DELETE FROM temp.doomed_facts;"
    "DELETE FROM temp.doomed_turns; DELETE FROM temp.doomed_records";

// Turns that only erased facts cite.
constexpr std::string_view kCollectCitedTurns =
    "INSERT OR IGNORE INTO temp.doomed_turns SELECT t.pk FROM temp.doomed_facts d"
    " JOIN facts f ON f.pk = d.pk JOIN fact_sources c ON c.fact = f.pk"
    " JOIN turns t ON t.scope = f.scope AND t.id = c.turn_id"
    " WHERE NOT EXISTS (SELECT 1 FROM fact_sources o JOIN facts g ON g.pk = o.fact"
    "  WHERE o.turn_id = c.turn_id AND g.scope = f.scope"
    "  AND o.fact NOT IN (SELECT pk FROM temp.doomed_facts))";

// Records of what goes, of what saw it, of what saw the KV of those (and so on), and whatever
// shares its key with one of them. ?1: records that belong to a scope which goes as a whole, too.
constexpr std::string_view kCollectRecords =
    "INSERT INTO temp.doomed_records WITH RECURSIVE doomed(pk) AS ("
    " SELECT r.pk FROM temp.doomed_facts d JOIN records r ON r.fact = d.pk"
    " UNION SELECT s.record FROM temp.doomed_facts d JOIN record_facts s ON s.fact = d.pk"
    " UNION SELECT s.record FROM temp.doomed_turns d JOIN record_turns s ON s.turn = d.pk"
    " UNION SELECT r.pk FROM temp.doomed_scopes d JOIN scopes s ON s.pk = d.pk"
    "  JOIN records r ON r.scope_hash = s.hash WHERE ?1"
    " UNION SELECT s.record FROM doomed d JOIN record_records s ON s.seen = d.pk"
    " UNION SELECT o.pk FROM doomed d JOIN records r ON r.pk = d.pk JOIN records o ON o.key = "
    "r.key)"
    " SELECT pk FROM doomed";

constexpr std::string_view kDependants =
    "SELECT DISTINCT f.id, f.version FROM temp.doomed_records d JOIN records r ON r.pk = d.pk"
    " JOIN facts f ON f.pk = r.fact WHERE r.retired = 0 AND r.version = f.version"
    " AND f.pk NOT IN (SELECT pk FROM temp.doomed_facts) ORDER BY f.pk";

// What must be gone afterwards.
constexpr std::string_view kCountLeft =
    "SELECT (SELECT count(*) FROM facts WHERE pk IN (SELECT pk FROM temp.doomed_facts))"
    " + (SELECT count(*) FROM fact_history WHERE fact IN (SELECT pk FROM temp.doomed_facts))"
    " + (SELECT count(*) FROM fact_sources WHERE fact IN (SELECT pk FROM temp.doomed_facts))"
    " + (SELECT count(*) FROM vectors WHERE fact IN (SELECT pk FROM temp.doomed_facts))"
    " + (SELECT count(*) FROM turns WHERE pk IN (SELECT pk FROM temp.doomed_turns))"
    " + (SELECT count(*) FROM records WHERE pk IN (SELECT pk FROM temp.doomed_records))"
    " + (SELECT count(*) FROM record_facts WHERE fact IN (SELECT pk FROM temp.doomed_facts))";

/// Facts whose terms are looked up in the index after an erase; the statements above cover all.
constexpr std::size_t kMaxProbedFacts = 16;
constexpr std::size_t kMaxProbedTerms = 64;

/// A term that an erased fact had, as the index spelt it.
struct Probe {
  std::int64_t fact;
  std::string index_term;
};

Result<std::vector<Probe>> make_probes(Connection& connection, KeywordTokenizer& tokenizer) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT f.pk, s.owner, f.text FROM temp.doomed_facts d"
                         " JOIN facts f ON f.pk = d.pk JOIN scopes s ON s.pk = f.scope LIMIT ?1"));
  statement.with(static_cast<std::int64_t>(kMaxProbedFacts));
  std::vector<Probe> probes;
  INFERSCALE_RETURN_IF_ERROR(statement.for_each([&](const Statement& row) {
    const std::size_t before = probes.size();
    tokenizer.for_each_term(row.text(2), [&](std::string_view term) {
      probes.push_back({row.integer(0), KeywordTokenizer::index_term(row.integer(1), term)});
      return probes.size() - before < kMaxProbedTerms;
    });
  }));
  return probes;
}

Result<std::uint64_t> remove(Connection& connection, std::string_view sql) {
  INFERSCALE_RETURN_IF_ERROR(connection.run(sql));
  return static_cast<std::uint64_t>(connection.changes());
}

Status collect(Connection& connection, bool keep_turns, bool whole_scopes, EraseOutcome& outcome) {
  if (!keep_turns && !whole_scopes) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(kCollectCitedTurns));
  }
  INFERSCALE_RETURN_IF_ERROR(connection.run(kCollectRecords, std::int64_t{whole_scopes}));
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement keys, connection.prepare("SELECT DISTINCT r.key FROM temp.doomed_records d"
                                         " JOIN records r ON r.pk = d.pk WHERE r.retired = 0"));
  INFERSCALE_RETURN_IF_ERROR(keys.for_each(
      [&](const Statement& row) { outcome.records.push_back(RecordKey{row.hash(0)}); }));
  INFERSCALE_ASSIGN_OR_RETURN(Statement dependants, connection.prepare(kDependants));
  return dependants.for_each([&](const Statement& row) {
    outcome.dependants.push_back({row.text(0), static_cast<std::uint32_t>(row.integer(1))});
  });
}

Status remove_records(Connection& connection) {
  for (const std::string_view sql :
       {"DELETE FROM record_records WHERE record IN (SELECT pk FROM temp.doomed_records)",
        "DELETE FROM record_turns WHERE record IN (SELECT pk FROM temp.doomed_records)",
        "DELETE FROM record_facts WHERE record IN (SELECT pk FROM temp.doomed_records)",
        "DELETE FROM records WHERE pk IN (SELECT pk FROM temp.doomed_records)"}) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(sql));
  }
  // Retired records are kept for those that were encoded behind them: some of these went just now.
  do {
    INFERSCALE_RETURN_IF_ERROR(connection.run(
        "DELETE FROM records WHERE retired = 1"
        " AND NOT EXISTS (SELECT 1 FROM record_records e WHERE e.seen = records.pk)"));
  } while (connection.changes() > 0);
  return Status();
}

/// The 'delete' command marks words as gone; 'optimize' rewrites the index without them.
Status remove_keywords(Connection& connection, EraseOutcome& outcome) {
  INFERSCALE_RETURN_IF_ERROR(
      connection.run("INSERT INTO keywords(keywords, rowid, text) SELECT 'delete', k.pk, k.text"
                     " FROM temp.doomed_facts d JOIN keyword_source k ON k.pk = d.pk"));
  outcome.keywords = static_cast<std::uint64_t>(connection.changes());
  return connection.run("INSERT INTO keywords(keywords) VALUES('optimize')");
}

Status remove_rows(Connection& connection, EraseOutcome& outcome) {
  INFERSCALE_RETURN_IF_ERROR(remove_records(connection));
  INFERSCALE_RETURN_IF_ERROR(remove_keywords(connection, outcome));
  INFERSCALE_ASSIGN_OR_RETURN(
      outcome.vectors,
      remove(connection, "DELETE FROM vectors WHERE fact IN (SELECT pk FROM temp.doomed_facts)"));
  INFERSCALE_ASSIGN_OR_RETURN(
      outcome.history,
      remove(connection,
             "DELETE FROM fact_history WHERE fact IN (SELECT pk FROM temp.doomed_facts)"));
  INFERSCALE_RETURN_IF_ERROR(
      connection.run("DELETE FROM fact_sources WHERE fact IN (SELECT pk FROM temp.doomed_facts)"));
  INFERSCALE_ASSIGN_OR_RETURN(
      outcome.facts,
      remove(connection, "DELETE FROM facts WHERE pk IN (SELECT pk FROM temp.doomed_facts)"));
  INFERSCALE_ASSIGN_OR_RETURN(
      outcome.turns,
      remove(connection, "DELETE FROM turns WHERE pk IN (SELECT pk FROM temp.doomed_turns)"));
  outcome.versions = outcome.facts + outcome.history;
  return Status();
}

/// The names of scopes and owners go with the last thing that they named.
Status remove_empty_names(Connection& connection) {
  for (const std::string_view sql :
       {"INSERT OR IGNORE INTO temp.doomed_owners SELECT s.owner FROM temp.doomed_scopes d"
        " JOIN scopes s ON s.pk = d.pk",
        "DELETE FROM scopes WHERE pk IN (SELECT pk FROM temp.doomed_scopes)"
        " AND NOT EXISTS (SELECT 1 FROM facts f WHERE f.scope = scopes.pk)"
        " AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.scope = scopes.pk)",
        "DELETE FROM owners WHERE pk IN (SELECT pk FROM temp.doomed_owners)"
        " AND NOT EXISTS (SELECT 1 FROM scopes s WHERE s.owner = owners.pk)"}) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(sql));
  }
  return Status();
}

/// Reads again what was erased: no row, no index entry.
Result<bool> nothing_left(Connection& connection, const std::vector<Probe>& probes) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t rows, connection.integer(kCountLeft));
  if (rows != 0) {
    return false;
  }
  for (const Probe& probe : probes) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::int64_t entries,
        connection.integer("SELECT count(*) FROM keyword_instances WHERE term = ?1 AND doc = ?2",
                           std::string_view(probe.index_term), probe.fact));
    if (entries != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<EraseOutcome> SqliteCatalog::finish_erase(Write& write, bool keep_turns, bool whole_scopes) {
  Connection& connection = write.connection;
  EraseOutcome outcome;
  INFERSCALE_RETURN_IF_ERROR(collect(connection, keep_turns, whole_scopes, outcome));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Probe> probes,
                              make_probes(connection, write.tokenizer));
  INFERSCALE_RETURN_IF_ERROR(remove_rows(connection, outcome));
  INFERSCALE_RETURN_IF_ERROR(remove_empty_names(connection));
  INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  // From here on the erase has happened: what follows only decides what the receipt may claim.
  const Status emptied = empty_log();
  const Result<bool> gone = nothing_left(connection, probes);
  outcome.verified = emptied.ok() && gone.ok() && *gone;
  if (!outcome.verified) {
    outcome.note = !emptied.ok() ? emptied.to_string()
                   : !gone.ok()  ? gone.status().to_string()
                                 : "rows or index entries were found again after the erase";
  }
  return outcome;
}

Result<EraseOutcome> SqliteCatalog::erase_facts(const Scope& request,
                                                std::span<const std::string> ids, bool keep_turns) {
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  Connection& connection = write.connection;
  INFERSCALE_RETURN_IF_ERROR(connection.exec(kCreateSets));
  for (const std::string& id : ids) {
    INFERSCALE_ASSIGN_OR_RETURN(const FactRow row, writable_fact(connection, request, id));
    INFERSCALE_RETURN_IF_ERROR(
        connection.run("INSERT OR IGNORE INTO temp.doomed_facts VALUES(?1)", row.pk));
    INFERSCALE_RETURN_IF_ERROR(
        connection.run("INSERT OR IGNORE INTO temp.doomed_scopes VALUES(?1)", row.scope));
  }
  return finish_erase(write, keep_turns, false);
}

Result<EraseOutcome> SqliteCatalog::erase_scope(const Scope& request) {
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  Connection& connection = write.connection;
  INFERSCALE_RETURN_IF_ERROR(connection.exec(kCreateSets));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeRow> scopes,
                              writable_scopes(connection, request));
  for (const ScopeRow& scope : scopes) {
    INFERSCALE_RETURN_IF_ERROR(
        connection.run("INSERT INTO temp.doomed_scopes VALUES(?1)", scope.pk));
    INFERSCALE_RETURN_IF_ERROR(connection.run(
        "INSERT INTO temp.doomed_facts SELECT pk FROM facts WHERE scope = ?1", scope.pk));
    INFERSCALE_RETURN_IF_ERROR(connection.run(
        "INSERT INTO temp.doomed_turns SELECT pk FROM turns WHERE scope = ?1", scope.pk));
  }
  return finish_erase(write, false, true);
}

}  // namespace inferscale::sqlite
