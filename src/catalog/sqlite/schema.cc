#include "catalog/sqlite/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "catalog/sqlite/scrub_vfs.h"

namespace inferscale::sqlite {
namespace {

constexpr const char* kVersion1 = R"sql(
-- An owner is a (tenant, user); its scopes add agent and run. The counters serve BM25.
CREATE TABLE owners(
  pk INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL,
  user TEXT NOT NULL,
  live_facts INTEGER NOT NULL DEFAULT 0,
  live_terms INTEGER NOT NULL DEFAULT 0,
  UNIQUE(tenant, user)) STRICT;
CREATE TABLE scopes(
  pk INTEGER PRIMARY KEY AUTOINCREMENT,
  owner INTEGER NOT NULL REFERENCES owners(pk),
  agent TEXT NOT NULL,
  run TEXT NOT NULL,
  hash BLOB NOT NULL UNIQUE,
  UNIQUE(owner, agent, run)) STRICT;

-- The live version of each fact. pk is the ingest sequence: AUTOINCREMENT never gives one twice.
CREATE TABLE facts(
  pk INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  scope INTEGER NOT NULL REFERENCES scopes(pk),
  version INTEGER NOT NULL,
  content_hash BLOB NOT NULL,
  n_terms INTEGER NOT NULL,
  ingest_time INTEGER NOT NULL,
  event_time INTEGER,
  event_offset INTEGER NOT NULL,
  text TEXT NOT NULL,
  metadata TEXT NOT NULL,
  UNIQUE(scope, content_hash)) STRICT;
CREATE INDEX facts_by_scope ON facts(scope, pk);
CREATE TABLE fact_history(
  pk INTEGER PRIMARY KEY,
  fact INTEGER NOT NULL REFERENCES facts(pk),
  version INTEGER NOT NULL,
  valid_from INTEGER NOT NULL,
  valid_to INTEGER NOT NULL,
  event_time INTEGER,
  event_offset INTEGER NOT NULL,
  text TEXT NOT NULL,
  metadata TEXT NOT NULL,
  UNIQUE(fact, version)) STRICT;
CREATE TABLE fact_sources(
  fact INTEGER NOT NULL REFERENCES facts(pk),
  position INTEGER NOT NULL,
  turn_id TEXT NOT NULL,
  PRIMARY KEY(fact, position)) STRICT, WITHOUT ROWID;
CREATE INDEX fact_sources_by_turn ON fact_sources(turn_id, fact);
CREATE TABLE turns(
  pk INTEGER PRIMARY KEY AUTOINCREMENT,
  scope INTEGER NOT NULL REFERENCES scopes(pk),
  id TEXT NOT NULL,
  event_time INTEGER NOT NULL,
  event_offset INTEGER NOT NULL,
  speaker TEXT NOT NULL,
  role TEXT NOT NULL,
  text TEXT NOT NULL,
  UNIQUE(scope, id)) STRICT;

-- Little-endian f32 [chunks][dim] of a live fact's text.
CREATE TABLE embedders(
  pk INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  dim INTEGER NOT NULL) STRICT;
CREATE TABLE vectors(
  pk INTEGER PRIMARY KEY,
  fact INTEGER NOT NULL REFERENCES facts(pk),
  embedder INTEGER NOT NULL REFERENCES embedders(pk),
  chunks INTEGER NOT NULL,
  data BLOB NOT NULL,
  UNIQUE(fact, embedder)) STRICT;

-- Keyword index of the live facts. The tokenizer puts the owner in front of every term, so that an
-- owner's terms lie together and statistics never mix owners.
CREATE VIEW keyword_source AS
  SELECT f.pk AS pk, s.owner || char(31) || f.text AS text
  FROM facts f JOIN scopes s ON s.pk = f.scope;
CREATE VIRTUAL TABLE keywords USING fts5(
  text, content='keyword_source', content_rowid='pk', columnsize=0, tokenize='inferscale');
CREATE VIRTUAL TABLE keyword_instances USING fts5vocab('keywords', 'instance');
CREATE TRIGGER facts_count_insert AFTER INSERT ON facts BEGIN
  UPDATE owners SET live_facts = live_facts + 1, live_terms = live_terms + new.n_terms
  WHERE pk = (SELECT owner FROM scopes WHERE pk = new.scope);
END;
CREATE TRIGGER facts_count_delete AFTER DELETE ON facts BEGIN
  UPDATE owners SET live_facts = live_facts - 1, live_terms = live_terms - old.n_terms
  WHERE pk = (SELECT owner FROM scopes WHERE pk = old.scope);
END;
CREATE TRIGGER facts_count_update AFTER UPDATE OF n_terms ON facts BEGIN
  UPDATE owners SET live_terms = live_terms - old.n_terms + new.n_terms
  WHERE pk = (SELECT owner FROM scopes WHERE pk = new.scope);
END;

-- Which KV record stands for which fact version. stale: it saw a fact version or a record that was
-- superseded since; it is served until it is encoded again. retired: it was replaced, but others
-- were encoded behind its KV: it stays, never served, as a link in the chain of what they saw.
CREATE TABLE records(
  pk INTEGER PRIMARY KEY AUTOINCREMENT,
  fact INTEGER REFERENCES facts(pk),
  version INTEGER NOT NULL,
  stale INTEGER NOT NULL DEFAULT 0,
  retired INTEGER NOT NULL DEFAULT 0,
  n_tokens INTEGER NOT NULL,
  fingerprint BLOB NOT NULL,
  key BLOB NOT NULL,
  context_id BLOB NOT NULL,
  scope_hash BLOB NOT NULL,
  context TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX records_current ON records(fact, fingerprint)
  WHERE fact IS NOT NULL AND retired = 0;
CREATE UNIQUE INDEX records_header ON records(key) WHERE fact IS NULL AND retired = 0;
CREATE INDEX records_by_fact ON records(fact);
CREATE INDEX records_by_context ON records(fingerprint, context) WHERE retired = 0;
CREATE INDEX records_stale ON records(fingerprint) WHERE stale = 1 AND retired = 0;
CREATE INDEX records_retired ON records(pk) WHERE retired = 1;
CREATE INDEX records_by_key ON records(key);
CREATE INDEX records_by_scope ON records(scope_hash);
CREATE TABLE record_facts(
  record INTEGER NOT NULL REFERENCES records(pk) ON DELETE CASCADE,
  fact INTEGER NOT NULL REFERENCES facts(pk),
  version INTEGER NOT NULL,
  PRIMARY KEY(record, fact, version)) STRICT, WITHOUT ROWID;
CREATE INDEX record_facts_by_fact ON record_facts(fact, record);
CREATE TABLE record_turns(
  record INTEGER NOT NULL REFERENCES records(pk) ON DELETE CASCADE,
  turn INTEGER NOT NULL REFERENCES turns(pk),
  PRIMARY KEY(record, turn)) STRICT, WITHOUT ROWID;
CREATE INDEX record_turns_by_turn ON record_turns(turn, record);
CREATE TABLE record_records(
  record INTEGER NOT NULL REFERENCES records(pk) ON DELETE CASCADE,
  seen INTEGER NOT NULL REFERENCES records(pk),
  PRIMARY KEY(record, seen)) STRICT, WITHOUT ROWID;
CREATE INDEX record_records_by_seen ON record_records(seen, record);

CREATE TABLE settings(name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
)sql";

// The last failure to encode a fact version. next_try NULL: it is not tried again.
constexpr const char* kVersion2 = R"sql(
CREATE TABLE encode_failures(
  fact INTEGER NOT NULL REFERENCES facts(pk) ON DELETE CASCADE,
  fingerprint BLOB NOT NULL,
  context TEXT NOT NULL,
  version INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  last_try INTEGER NOT NULL,
  next_try INTEGER,
  error TEXT NOT NULL,
  PRIMARY KEY(fact, fingerprint, context)) STRICT, WITHOUT ROWID;
)sql";

// What tells a damaged row from a whole one: row_checksum.h says what is covered. What lies there
// already is taken as it is.
constexpr const char* kVersion3 = R"sql(
ALTER TABLE facts ADD COLUMN checksum INTEGER;
ALTER TABLE fact_history ADD COLUMN checksum INTEGER;
ALTER TABLE fact_sources ADD COLUMN checksum INTEGER;
ALTER TABLE turns ADD COLUMN checksum INTEGER;
UPDATE facts SET checksum = inferscale_checksum(
  id, scope, version, ingest_time, event_time, event_offset, text, metadata);
UPDATE fact_history SET checksum = inferscale_checksum(
  fact, version, valid_from, valid_to, event_time, event_offset, text, metadata);
UPDATE fact_sources SET checksum = inferscale_checksum(fact, position, turn_id);
UPDATE turns SET checksum = inferscale_checksum(
  scope, id, event_time, event_offset, speaker, role, text);
)sql";

// How often something of an owner was erased. By a hash, since it outlives the owner's name.
constexpr const char* kVersion4 = R"sql(
CREATE TABLE epochs(
  pk INTEGER PRIMARY KEY,
  owner BLOB NOT NULL UNIQUE,
  epoch INTEGER NOT NULL,
  checksum INTEGER NOT NULL) STRICT;
)sql";

constexpr Migration kMigrations[] = {
    {1, kVersion1}, {2, kVersion2}, {3, kVersion3}, {4, kVersion4}};

Status apply(Connection& connection, const Migration& step) {
  INFERSCALE_ASSIGN_OR_RETURN(Transaction transaction,
                              Transaction::begin(connection, Transaction::Kind::kWrite));
  INFERSCALE_RETURN_IF_ERROR(connection.exec(step.sql));
  const std::string stamp =
      fmt::format("PRAGMA user_version={}; PRAGMA application_id={}", step.version, kApplicationId);
  INFERSCALE_RETURN_IF_ERROR(connection.exec(stamp.c_str()));
  return transaction.commit();
}

}  // namespace

std::span<const Migration> migrations() { return kMigrations; }

Status migrate(Connection& connection, std::span<const Migration> steps) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t found, connection.integer("PRAGMA user_version"));
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t application,
                              connection.integer("PRAGMA application_id"));
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t objects,
                              connection.integer("SELECT count(*) FROM sqlite_schema"));
  if (application != kApplicationId && (application != 0 || found != 0 || objects != 0)) {
    return data_loss(
        "the database is not an InferScale catalog: choose another directory, or move the file "
        "away");
  }
  const int newest = steps.empty() ? 0 : steps.back().version;
  if (found > newest) {
    return unsupported(fmt::format(
        "the catalog has schema version {}, this program knows up to {}: install a newer "
        "InferScale (the data is untouched)",
        found, newest));
  }
  for (const Migration& step : steps) {
    if (step.version > found) {
      const Status status = apply(connection, step);
      if (!status.ok()) {
        return status.with_context(fmt::format("migration to schema version {}", step.version));
      }
    }
  }
  return Status();
}

Status configure_writer(Connection& connection, std::uint64_t max_bytes) {
  const std::string page_size = fmt::format("PRAGMA page_size={}", kPageBytes);
  INFERSCALE_RETURN_IF_ERROR(connection.exec(page_size.c_str()));
  INFERSCALE_ASSIGN_OR_RETURN(Statement journal, connection.prepare("PRAGMA journal_mode=WAL"));
  INFERSCALE_RETURN_IF_ERROR(journal.step().status());
  if (journal.text(0) != "wal") {
    return unavailable(
        "the catalog's file system does not support write-ahead logging "
        "(shared memory): use a local disk");
  }
  // FULL syncs the log at every commit: an acknowledged write survives a power cut.
  INFERSCALE_RETURN_IF_ERROR(
      connection.exec("PRAGMA synchronous=FULL; PRAGMA cache_size=-32768;"
                      "PRAGMA wal_autocheckpoint=1000; PRAGMA journal_size_limit=16777216"));
  const auto wanted = max_bytes == 0 ? kMaxPages : static_cast<long>(max_bytes / kPageBytes);
  const std::string limit =
      fmt::format("PRAGMA max_page_count={}", std::clamp(wanted, 1L, kMaxPages));
  INFERSCALE_RETURN_IF_ERROR(connection.exec(limit.c_str()));
  return Status();
}

}  // namespace inferscale::sqlite
