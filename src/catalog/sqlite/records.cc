// Committing an encode job. Reading records: records_read.cc.
#include <fmt/format.h>

#include <utility>

#include "catalog/sqlite/epochs.h"
#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"
#include "catalog/sqlite/validate.h"

namespace inferscale::sqlite {
namespace {

/// What an entry names, as row keys.
struct Resolved {
  std::optional<FactRow> fact;
  std::vector<std::pair<std::int64_t, std::uint32_t>> attended_facts;
  std::vector<std::int64_t> attended_turns;
  std::vector<std::int64_t> attended_records;
};

Status gone(std::string_view what) {
  return conflict(fmt::format("{} is no longer live: encode the fact again", what));
}

Result<FactRow> live_version(Connection& connection, const FactRef& ref) {
  INFERSCALE_ASSIGN_OR_RETURN(std::optional<FactRow> row, find_fact(connection, ref.id));
  if (!row || row->fact.version != ref.version) {
    return gone(fmt::format("version {} of fact {}", ref.version, ref.id));
  }
  return *std::move(row);
}

Status resolve_fact(Connection& connection, const RecordEntry& entry, Resolved& out) {
  if (entry.fact.id.empty()) {
    return Status();
  }
  INFERSCALE_ASSIGN_OR_RETURN(out.fact, live_version(connection, entry.fact));
  if (scope_hash(out.fact->fact.scope) != entry.scope) {
    return invalid_argument("record.scope must be the scope_hash of the fact's own scope");
  }
  return Status();
}

Status resolve_attended_facts(Connection& connection, const RecordEntry& entry, Resolved& out) {
  for (const FactRef& ref : entry.attended_facts) {
    INFERSCALE_ASSIGN_OR_RETURN(const FactRow row, live_version(connection, ref));
    const bool allowed = out.fact ? scope_permits(out.fact->fact.scope, row.fact.scope)
                                  : scope_hash(row.fact.scope) == entry.scope;
    if (!allowed) {
      return invalid_argument(fmt::format(
          "record.attended_facts: fact {} is of a scope that the record's scope may not use",
          ref.id));
    }
    out.attended_facts.emplace_back(row.pk, ref.version);
  }
  return Status();
}

Status resolve_attended_turns(Connection& connection, const RecordEntry& entry, Resolved& out) {
  for (const std::string& id : entry.attended_turns) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::optional<std::int64_t> turn,
        connection.find_integer("SELECT t.pk FROM turns t JOIN scopes s ON s.pk = t.scope"
                                " WHERE s.hash = ?1 AND t.id = ?2",
                                entry.scope, std::string_view(id)));
    if (!turn) {
      return gone("turn " + id);
    }
    out.attended_turns.push_back(*turn);
  }
  return Status();
}

Status resolve_attended_records(Connection& connection, const RecordEntry& entry, Resolved& out) {
  for (const RecordKey& key : entry.attended_records) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::optional<std::int64_t> record,
        connection.find_integer(
            "SELECT pk FROM records WHERE key = ?1 AND fingerprint = ?2 AND retired = 0"
            " ORDER BY pk LIMIT 1",
            key.value, entry.model_fingerprint));
    if (!record) {
      return gone("record " + key.value.to_hex());
    }
    out.attended_records.push_back(*record);
  }
  return Status();
}

/// The commit rule: everything that was attended to is still live.
Result<Resolved> resolve(Connection& connection, const RecordEntry& entry) {
  Resolved out;
  INFERSCALE_RETURN_IF_ERROR(resolve_fact(connection, entry, out));
  INFERSCALE_RETURN_IF_ERROR(resolve_attended_facts(connection, entry, out));
  INFERSCALE_RETURN_IF_ERROR(resolve_attended_turns(connection, entry, out));
  INFERSCALE_RETURN_IF_ERROR(resolve_attended_records(connection, entry, out));
  return out;
}

struct OldRecord {
  std::int64_t pk = 0;
  RecordKey key;
};

/// The entry that the new one takes the place of: of this fact (any version) or, for a header
/// record, of this key.
Result<std::optional<OldRecord>> find_old(Connection& connection, const RecordEntry& entry,
                                          const Resolved& resolved) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare(resolved.fact ? "SELECT pk, key FROM records WHERE fact = ?1"
                                         " AND fingerprint = ?2 AND retired = 0"
                                       : "SELECT pk, key FROM records WHERE fact IS NULL"
                                         " AND key = ?1 AND retired = 0"));
  if (resolved.fact) {
    statement.with(resolved.fact->pk, entry.model_fingerprint);
  } else {
    statement.with(entry.key.value);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.step());
  if (!found) {
    return std::optional<OldRecord>();
  }
  return std::optional<OldRecord>({statement.integer(0), RecordKey{statement.hash(1)}});
}

/// Others that were encoded behind the KV of a replaced record are stale, unless its successor has
/// the same key: then it is the same KV.
Status update_viewers(Connection& connection, const OldRecord& old, const RecordEntry& entry,
                      std::int64_t record) {
  if (old.key == entry.key) {
    return connection.run("UPDATE OR IGNORE record_records SET seen = ?2 WHERE seen = ?1", old.pk,
                          record);
  }
  return connection.run(
      "UPDATE records SET stale = 1 WHERE pk IN (SELECT record FROM record_records WHERE seen = "
      "?1)",
      old.pk);
}

/// A retired record that nothing was encoded behind serves no purpose; nor, then, may those that it
/// was encoded behind itself.
Status drop_unseen(Connection& connection, std::int64_t record) {
  std::vector<std::int64_t> pending = {record};
  while (!pending.empty()) {
    const std::int64_t pk = pending.back();
    pending.pop_back();
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::int64_t needed,
        connection.integer("SELECT retired = 0 OR EXISTS (SELECT 1 FROM record_records"
                           " WHERE seen = ?1) FROM records WHERE pk = ?1",
                           pk));
    if (needed != 0) {
      continue;
    }
    INFERSCALE_ASSIGN_OR_RETURN(
        Statement seen, connection.prepare("SELECT seen FROM record_records WHERE record = ?1"));
    INFERSCALE_RETURN_IF_ERROR(
        seen.with(pk).for_each([&](const Statement& row) { pending.push_back(row.integer(0)); }));
    INFERSCALE_RETURN_IF_ERROR(connection.run("DELETE FROM records WHERE pk = ?1", pk));
  }
  return Status();
}

Result<std::int64_t> insert_record(Connection& connection, const RecordEntry& entry,
                                   const Resolved& resolved) {
  const std::optional<std::int64_t> fact =
      resolved.fact ? std::optional<std::int64_t>(resolved.fact->pk) : std::nullopt;
  INFERSCALE_RETURN_IF_ERROR(connection.run(
      "INSERT INTO records(fact, version, n_tokens, fingerprint, key, context_id, scope_hash,"
      " context) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
      fact, std::int64_t{entry.fact.version}, std::int64_t{entry.n_tokens}, entry.model_fingerprint,
      entry.key.value, entry.context_id, entry.scope, std::string_view(entry.context)));
  const std::int64_t record = connection.last_insert_rowid();
  for (const auto& [pk, version] : resolved.attended_facts) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(
        "INSERT INTO record_facts(record, fact, version) VALUES(?1, ?2, ?3) ON CONFLICT DO NOTHING",
        record, pk, std::int64_t{version}));
  }
  for (const std::int64_t turn : resolved.attended_turns) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(
        "INSERT INTO record_turns(record, turn) VALUES(?1, ?2) ON CONFLICT DO NOTHING", record,
        turn));
  }
  for (const std::int64_t seen : resolved.attended_records) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(
        "INSERT INTO record_records(record, seen) VALUES(?1, ?2) ON CONFLICT DO NOTHING", record,
        seen));
  }
  // KV that was injected may have been stale itself: then so is what was encoded behind it.
  INFERSCALE_RETURN_IF_ERROR(connection.run(
      "UPDATE records SET stale = 1 WHERE pk = ?1 AND EXISTS (SELECT 1 FROM record_records e"
      " JOIN records s ON s.pk = e.seen WHERE e.record = ?1 AND (s.stale = 1 OR s.retired = 1))",
      record));
  return record;
}

}  // namespace

Result<std::optional<RecordKey>> SqliteCatalog::commit_record(const RecordEntry& entry) {
  INFERSCALE_RETURN_IF_ERROR(check_record(entry));
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  Connection& connection = write.connection;
  INFERSCALE_ASSIGN_OR_RETURN(const Resolved resolved, resolve(connection, entry));
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<OldRecord> old,
                              find_old(connection, entry, resolved));
  if (old) {  // before its successor: only one entry of a fact is current
    INFERSCALE_RETURN_IF_ERROR(
        connection.run("UPDATE records SET retired = 1 WHERE pk = ?1", old->pk));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t record,
                              insert_record(connection, entry, resolved));
  if (resolved.fact) {
    INFERSCALE_RETURN_IF_ERROR(
        connection.run("DELETE FROM encode_failures WHERE fact = ?1 AND fingerprint = ?2",
                       resolved.fact->pk, entry.model_fingerprint));
  }
  std::optional<RecordKey> replaced;
  if (old) {
    INFERSCALE_RETURN_IF_ERROR(update_viewers(connection, *old, entry, record));
    INFERSCALE_RETURN_IF_ERROR(drop_unseen(connection, old->pk));
    // Two facts may share a record (same text behind the same context): then it stays in use.
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::int64_t users,
        connection.integer("SELECT count(*) FROM records WHERE key = ?1 AND retired = 0",
                           old->key.value));
    replaced = users == 0 ? std::optional<RecordKey>(old->key) : std::nullopt;
  }
  if (replaced && resolved.fact) {
    const Scope& scope = resolved.fact->fact.scope;
    std::vector<OwnerEpoch> owner = {{scope.tenant, scope.user, 0}};
    INFERSCALE_RETURN_IF_ERROR(raise_epochs(connection, owner));
  }
  INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  return replaced;
}

Result<std::uint64_t> SqliteCatalog::outdate_records(const Hash128& model_fingerprint) {
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  INFERSCALE_RETURN_IF_ERROR(
      write.connection.run("UPDATE records SET stale = 1 WHERE fingerprint = ?1 AND retired = 0"
                           " AND stale = 0 AND fact IS NOT NULL",
                           model_fingerprint));
  const auto changed = static_cast<std::uint64_t>(write.connection.changes());
  INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  return changed;
}

}  // namespace inferscale::sqlite
