// Deletion: what goes is collected in temporary tables first, then removed table by table, counted
// by the rows that really went, and read again afterwards.
#include <unordered_set>

#include "catalog/sqlite/epochs.h"
#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/filter_sql.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

// In memory (temp_store) and of this connection only.
constexpr const char* kCreateSets =
    "CREATE TEMP TABLE IF NOT EXISTS doomed_scopes(pk INTEGER PRIMARY KEY);"
    "CREATE TEMP TABLE IF NOT EXISTS doomed_owners(pk INTEGER PRIMARY KEY);"
    "CREATE TEMP TABLE IF NOT EXISTS doomed_facts(pk INTEGER PRIMARY KEY);"
    "CREATE TEMP TABLE IF NOT EXISTS doomed_versions(fact INTEGER, version INTEGER,"
    " PRIMARY KEY(fact, version)) WITHOUT ROWID;"
    "CREATE TEMP TABLE IF NOT EXISTS doomed_turns(pk INTEGER PRIMARY KEY);"
    "CREATE TEMP TABLE IF NOT EXISTS doomed_records(pk INTEGER PRIMARY KEY);"
    "DELETE FROM temp.doomed_scopes; DELETE FROM temp.doomed_owners;"
    "DELETE FROM temp.doomed_facts; DELETE FROM temp.doomed_versions;"
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
// shares its key with one of them. What the facts of a scope shared (names) goes with the last of
// them. ?1: records that belong to a scope which goes as a whole, too.
constexpr std::string_view kCollectRecords =
    "INSERT INTO temp.doomed_records WITH RECURSIVE doomed(pk) AS ("
    " SELECT r.pk FROM temp.doomed_facts d JOIN records r ON r.fact = d.pk"
    " UNION SELECT s.record FROM temp.doomed_facts d JOIN record_facts s ON s.fact = d.pk"
    " UNION SELECT r.pk FROM temp.doomed_versions d JOIN records r ON r.fact = d.fact"
    "  AND r.version = d.version"
    " UNION SELECT s.record FROM temp.doomed_versions d JOIN record_facts s ON s.fact = d.fact"
    "  AND s.version = d.version"
    " UNION SELECT s.record FROM temp.doomed_turns d JOIN record_turns s ON s.turn = d.pk"
    " UNION SELECT r.pk FROM temp.doomed_scopes d JOIN scopes s ON s.pk = d.pk"
    "  JOIN records r ON r.scope_hash = s.hash WHERE ?1"
    " UNION SELECT r.pk FROM temp.doomed_scopes d JOIN scopes s ON s.pk = d.pk"
    "  JOIN records r ON r.scope_hash = s.hash WHERE r.fact IS NULL AND r.context <> 'prefix'"
    "  AND NOT EXISTS (SELECT 1 FROM facts f WHERE f.scope = d.pk"
    "   AND f.pk NOT IN (SELECT pk FROM temp.doomed_facts))"
    " UNION SELECT s.record FROM doomed d JOIN record_records s ON s.seen = d.pk"
    " UNION SELECT o.pk FROM doomed d JOIN records r ON r.pk = d.pk JOIN records o ON o.key = "
    "r.key)"
    " SELECT pk FROM doomed";

constexpr std::int64_t kAllFacts = -1;

constexpr std::string_view kDependants =
    "SELECT DISTINCT f.id, f.version FROM temp.doomed_records d JOIN records r ON r.pk = d.pk"
    " JOIN facts f ON f.pk = r.fact WHERE r.retired = 0 AND r.version = f.version"
    " AND f.pk NOT IN (SELECT pk FROM temp.doomed_facts) ORDER BY f.pk";

// Whose things go: facts, versions, turns and records.
constexpr std::string_view kOwners =
    "SELECT o.tenant, o.user FROM owners o WHERE o.pk IN ("
    " SELECT s.owner FROM scopes s JOIN facts f ON f.scope = s.pk WHERE f.pk IN"
    "  (SELECT pk FROM temp.doomed_facts UNION SELECT fact FROM temp.doomed_versions)"
    " UNION SELECT s.owner FROM temp.doomed_turns d JOIN turns t ON t.pk = d.pk"
    "  JOIN scopes s ON s.pk = t.scope"
    " UNION SELECT s.owner FROM temp.doomed_records d JOIN records r ON r.pk = d.pk"
    "  JOIN scopes s ON s.hash = r.scope_hash)";

// What must be gone afterwards.
constexpr std::string_view kCountLeft =
    "SELECT (SELECT count(*) FROM facts WHERE pk IN (SELECT pk FROM temp.doomed_facts))"
    " + (SELECT count(*) FROM fact_history WHERE fact IN (SELECT pk FROM temp.doomed_facts))"
    " + (SELECT count(*) FROM fact_sources WHERE fact IN (SELECT pk FROM temp.doomed_facts))"
    " + (SELECT count(*) FROM vectors WHERE fact IN (SELECT pk FROM temp.doomed_facts))"
    " + (SELECT count(*) FROM turns WHERE pk IN (SELECT pk FROM temp.doomed_turns))"
    " + (SELECT count(*) FROM records WHERE pk IN (SELECT pk FROM temp.doomed_records))"
    " + (SELECT count(*) FROM record_facts WHERE fact IN (SELECT pk FROM temp.doomed_facts))"
    " + (SELECT count(*) FROM temp.doomed_versions d JOIN fact_history h ON h.fact = d.fact"
    "  AND h.version = d.version)"
    " + (SELECT count(*) FROM temp.doomed_versions d JOIN record_facts s ON s.fact = d.fact"
    "  AND s.version = d.version)";

/// Facts whose terms are looked up in the index after an erase; the statements above cover all.
constexpr std::size_t kMaxProbedFacts = 16;
constexpr std::size_t kMaxProbedTerms = 64;

/// A term that an erased fact had, as the index spelt it.
struct Probe {
  std::int64_t fact;
  std::string index_term;
};

/// Adds the terms of the rows (fact, owner, text) that `terms_to_keep` does not have.
Status add_probes(Statement& rows, KeywordTokenizer& tokenizer,
                  const std::unordered_set<std::string>& terms_to_keep,
                  std::vector<Probe>& probes) {
  return rows.for_each([&](const Statement& row) {
    const std::size_t before = probes.size();
    tokenizer.for_each_term(row.text(2), [&](std::string_view term) {
      std::string index_term = KeywordTokenizer::index_term(row.integer(1), term);
      if (!terms_to_keep.contains(index_term)) {
        probes.push_back({row.integer(0), std::move(index_term)});
      }
      return probes.size() - before < kMaxProbedTerms;
    });
  });
}

Result<std::vector<Probe>> make_probes(Connection& connection, KeywordTokenizer& tokenizer) {
  std::vector<Probe> probes;
  constexpr auto kLimit = static_cast<std::int64_t>(kMaxProbedFacts);
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement facts,
      connection.prepare("SELECT f.pk, s.owner, f.text FROM temp.doomed_facts d"
                         " JOIN facts f ON f.pk = d.pk JOIN scopes s ON s.pk = f.scope LIMIT ?1"));
  INFERSCALE_RETURN_IF_ERROR(add_probes(facts.with(kLimit), tokenizer, {}, probes));
  // Old versions may share words with the live one, which stay in the index.
  std::vector<Probe> live;
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement lives, connection.prepare("SELECT f.pk, s.owner, f.text FROM facts f JOIN scopes s"
                                          " ON s.pk = f.scope WHERE f.pk IN (SELECT DISTINCT fact"
                                          " FROM temp.doomed_versions LIMIT ?1)"));
  INFERSCALE_RETURN_IF_ERROR(add_probes(lives.with(kLimit), tokenizer, {}, live));
  std::unordered_set<std::string> keep;
  for (Probe& probe : live) {
    keep.insert(std::move(probe.index_term));
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement olds,
      connection.prepare("SELECT h.fact, s.owner, h.text FROM temp.doomed_versions d"
                         " JOIN fact_history h ON h.fact = d.fact"
                         "  AND h.version = d.version"
                         " JOIN facts f ON f.pk = h.fact JOIN scopes s"
                         "  ON s.pk = f.scope WHERE h.fact IN (SELECT DISTINCT fact"
                         "  FROM temp.doomed_versions LIMIT ?1)"));
  INFERSCALE_RETURN_IF_ERROR(add_probes(olds.with(kLimit), tokenizer, keep, probes));
  return probes;
}

Result<std::uint64_t> remove(Connection& connection, std::string_view sql) {
  INFERSCALE_RETURN_IF_ERROR(connection.run(sql));
  return static_cast<std::uint64_t>(connection.changes());
}

/// Facts, the scopes they are in and, when the scope goes as a whole, its turns.
Status collect_chosen(Connection& connection, const EraseRequest& request) {
  for (const std::string& id : request.ids) {
    INFERSCALE_ASSIGN_OR_RETURN(const FactRow row, writable_fact(connection, request.scope, id));
    INFERSCALE_RETURN_IF_ERROR(
        connection.run("INSERT OR IGNORE INTO temp.doomed_facts VALUES(?1)", row.pk));
  }
  if (request.ids.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeRow> scopes,
                                writable_scopes(connection, request.scope));
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::vector<std::int64_t> facts,
        select_facts(connection, scopes, request.filter.value_or(Filter()), 0, kAllFacts));
    for (const std::int64_t pk : facts) {
      INFERSCALE_RETURN_IF_ERROR(connection.run("INSERT INTO temp.doomed_facts VALUES(?1)", pk));
    }
    for (std::size_t i = 0; request.whole_scope && i < scopes.size(); ++i) {
      INFERSCALE_RETURN_IF_ERROR(
          connection.run("INSERT INTO temp.doomed_scopes VALUES(?1)", scopes[i].pk));
    }
  }
  if (request.whole_scope && !request.keep_turns && !request.old_versions) {
    INFERSCALE_RETURN_IF_ERROR(
        connection.run("INSERT INTO temp.doomed_turns SELECT pk FROM turns"
                       " WHERE scope IN (SELECT pk FROM temp.doomed_scopes)"));
  }
  return connection.run(
      "INSERT OR IGNORE INTO temp.doomed_scopes SELECT f.scope"
      " FROM temp.doomed_facts d JOIN facts f ON f.pk = d.pk");
}

/// Facts that were chosen for their old versions alone stay themselves.
Status keep_live_versions(Connection& connection) {
  INFERSCALE_RETURN_IF_ERROR(
      connection.run("INSERT INTO temp.doomed_versions SELECT h.fact, h.version"
                     " FROM temp.doomed_facts d JOIN fact_history h ON h.fact = d.pk"));
  for (const std::string_view sql :
       {"DELETE FROM temp.doomed_facts", "DELETE FROM temp.doomed_scopes"}) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(sql));
  }
  return Status();
}

Status list_erased(Connection& connection, EraseOutcome& outcome) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT f.id, f.version, o.tenant, o.user, s.agent, s.run FROM facts f"
                         " JOIN scopes s ON s.pk = f.scope JOIN owners o ON o.pk = s.owner"
                         " WHERE f.pk IN (SELECT pk FROM temp.doomed_facts"
                         "  UNION SELECT fact FROM temp.doomed_versions) ORDER BY f.pk"));
  return statement.for_each([&](const Statement& row) {
    outcome.erased.push_back({row.text(0),
                              Scope{row.text(2), row.text(3), row.text(4), row.text(5)},
                              static_cast<std::uint32_t>(row.integer(1))});
  });
}

Status collect(Connection& connection, const EraseRequest& request, EraseOutcome& outcome) {
  const bool whole_scopes = request.whole_scope && !request.old_versions;
  if (!request.keep_turns && !whole_scopes && !request.old_versions) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(kCollectCitedTurns));
  }
  INFERSCALE_RETURN_IF_ERROR(list_erased(connection, outcome));
  INFERSCALE_RETURN_IF_ERROR(connection.run(kCollectRecords, std::int64_t{whole_scopes}));
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement keys, connection.prepare("SELECT DISTINCT r.key FROM temp.doomed_records d"
                                         " JOIN records r ON r.pk = d.pk WHERE r.retired = 0"));
  INFERSCALE_RETURN_IF_ERROR(keys.for_each(
      [&](const Statement& row) { outcome.records.push_back(RecordKey{row.hash(0)}); }));
  INFERSCALE_ASSIGN_OR_RETURN(outcome.owners, owners_in(connection, kOwners));
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

/// The 'delete' command marks words as gone.
Status remove_keywords(Connection& connection, EraseOutcome& outcome) {
  INFERSCALE_RETURN_IF_ERROR(
      connection.run("INSERT INTO keywords(keywords, rowid, text) SELECT 'delete', k.pk, k.text"
                     " FROM temp.doomed_facts d JOIN keyword_source k ON k.pk = d.pk"));
  outcome.keywords = static_cast<std::uint64_t>(connection.changes());
  return Status();
}

/// Rewrites the index without the words that are marked, by this erase or by updates before it.
Status rewrite_keywords(Connection& connection, const EraseOutcome& outcome) {
  return outcome.erased.empty()
             ? Status()
             : connection.run("INSERT INTO keywords(keywords) VALUES('optimize')");
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
             "DELETE FROM fact_history WHERE fact IN (SELECT pk FROM temp.doomed_facts)"
             " OR (fact, version) IN (SELECT fact, version FROM temp.doomed_versions)"));
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

Result<EraseOutcome> SqliteCatalog::finish_erase(Write& write, const EraseRequest& request) {
  Connection& connection = write.connection;
  EraseOutcome outcome;
  INFERSCALE_RETURN_IF_ERROR(collect(connection, request, outcome));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Probe> probes,
                              make_probes(connection, write.tokenizer));
  INFERSCALE_RETURN_IF_ERROR(remove_rows(connection, outcome));
  if (request.dry_run) {
    outcome.note = "nothing was erased: this was a dry run";
    return outcome;  // the transaction rolls back
  }
  INFERSCALE_RETURN_IF_ERROR(raise_epochs(connection, outcome.owners));
  INFERSCALE_RETURN_IF_ERROR(rewrite_keywords(connection, outcome));
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

Result<EraseOutcome> SqliteCatalog::erase(const EraseRequest& request) {
  const int choices =
      (request.ids.empty() ? 0 : 1) + (request.filter ? 1 : 0) + (request.whole_scope ? 1 : 0);
  if (choices != 1) {
    return invalid_argument("erase: give ids, a filter, or the whole scope: exactly one of them");
  }
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  INFERSCALE_RETURN_IF_ERROR(write.connection.exec(kCreateSets));
  INFERSCALE_RETURN_IF_ERROR(collect_chosen(write.connection, request));
  if (request.old_versions) {
    INFERSCALE_RETURN_IF_ERROR(keep_live_versions(write.connection));
  }
  return finish_erase(write, request);
}

}  // namespace inferscale::sqlite
