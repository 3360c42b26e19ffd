// Mending what check.cc finds. Facts, turns and history are never removed; what is derived from
// them is made again or dropped.
#include <fmt/format.h>

#include <utility>

#include "catalog/sqlite/epochs.h"
#include "catalog/sqlite/fact_check.h"
#include "catalog/sqlite/row_checksum.h"
#include "catalog/sqlite/row_rules.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

constexpr std::size_t kMostNamed = 100;  // rows that are named one by one

constexpr const char* kCreateDoomed =
    "CREATE TEMP TABLE IF NOT EXISTS doomed_records(pk INTEGER PRIMARY KEY);"
    "DELETE FROM temp.doomed_records";

// What saw their KV, and what shares its key with one of them, goes too.
constexpr std::string_view kSpread =
    "INSERT OR IGNORE INTO temp.doomed_records WITH RECURSIVE doomed(pk) AS ("
    " SELECT pk FROM temp.doomed_records"
    " UNION SELECT e.record FROM doomed d JOIN record_records e ON e.seen = d.pk"
    " UNION SELECT o.pk FROM doomed d JOIN records r ON r.pk = d.pk JOIN records o ON o.key ="
    "  r.key)"
    " SELECT pk FROM doomed";

void note(CatalogRepair& repair, std::string what, std::int64_t count) {
  if (count > 0) {
    repair.actions.push_back({std::move(what), static_cast<std::uint64_t>(count)});
  }
}

/// Drops what is in temp.doomed_records.
Status drop_doomed(Connection& connection, CatalogRepair& repair) {
  INFERSCALE_RETURN_IF_ERROR(connection.run(kSpread));
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement keys,
      connection.prepare("SELECT DISTINCT r.key FROM temp.doomed_records d JOIN records r"
                         " ON r.pk = d.pk WHERE length(r.key) = 16"));
  INFERSCALE_RETURN_IF_ERROR(keys.for_each(
      [&](const Statement& row) { repair.records.push_back(RecordKey{row.hash(0)}); }));
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<OwnerEpoch> owners,
                              owners_in(connection, kOwnersOfDoomedRecords));
  INFERSCALE_RETURN_IF_ERROR(raise_epochs(connection, owners));
  for (const std::string_view sql :
       {"DELETE FROM record_records WHERE record IN (SELECT pk FROM temp.doomed_records)",
        "DELETE FROM record_turns WHERE record IN (SELECT pk FROM temp.doomed_records)",
        "DELETE FROM record_facts WHERE record IN (SELECT pk FROM temp.doomed_records)"}) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(sql));
  }
  std::int64_t dropped = 0;
  std::string_view sql = "DELETE FROM records WHERE pk IN (SELECT pk FROM temp.doomed_records)";
  do {
    INFERSCALE_RETURN_IF_ERROR(connection.run(sql));
    dropped += connection.changes();
    // Retired entries stay for those that were encoded behind them: some of these went just now.
    sql =
        "DELETE FROM records WHERE retired = 1"
        " AND NOT EXISTS (SELECT 1 FROM record_records e WHERE e.seen = records.pk)";
  } while (connection.changes() > 0);
  note(repair, "record entries dropped", dropped);
  return Status();
}

Status mend_facts(Session& session, CatalogRepair& repair) {
  std::vector<std::int64_t> bad;
  std::vector<std::string> doubtful;
  INFERSCALE_RETURN_IF_ERROR(for_each_bad_fact(session, [&](const BadFact& fact) {
    const std::string_view kind = fact.kind;
    if (kind == "fact_hash" || kind == "fact_words") {
      bad.push_back(fact.pk);
    }
    if (kind == "fact_hash" && doubtful.size() < kMostNamed) {
      doubtful.push_back(fact.id);
    }
  }));
  std::int64_t mended = 0;
  for (const std::int64_t fact : bad) {
    const Status status = mend_fact(session, fact);
    if (!status.ok() && status.code() != StatusCode::kConflict) {
      return status;
    }
    mended += status.ok() ? 1 : 0;
  }
  note(repair, "facts' hashes and word counts derived again", mended);
  for (const std::string& id : doubtful) {
    note(repair,
         fmt::format("fact {}: its hash did not fit its text, one of the two was damaged: read it, "
                     "and update or delete it if the text is wrong",
                     id),
         1);
  }
  return Status();
}

/// What the rows hold is all that is left of them: it is kept, and named, since nobody but its
/// owner can say whether it is what was written.
Status accept_unsound_rows(Connection& connection, CatalogRepair& repair) {
  std::size_t named = 0;
  INFERSCALE_RETURN_IF_ERROR(
      for_each_unsound_row(connection, [&](const ChecksummedTable&, const std::string& key) {
        if (named++ < kMostNamed) {
          note(repair,
               key +
                   ": its content did not match its checksum and was kept as it is: read it, and "
                   "update or delete the fact if it is wrong",
               1);
        }
      }));
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t renewed, renew_checksums(connection));
  note(repair, "checksums of rows written anew", renewed);
  return Status();
}

Status drop_bad_vectors(Connection& connection, CatalogRepair& repair) {
  std::vector<std::int64_t> bad;
  INFERSCALE_RETURN_IF_ERROR(
      for_each_bad_vector(connection, [&](std::int64_t row) { bad.push_back(row); }));
  for (const std::int64_t row : bad) {
    INFERSCALE_RETURN_IF_ERROR(connection.run("DELETE FROM vectors WHERE pk = ?1", row));
  }
  note(repair, "vectors with wrong values dropped; they are made again",
       static_cast<std::int64_t>(bad.size()));
  return Status();
}

Status apply_rules(Connection& connection, CatalogRepair& repair) {
  for (const RowRule& rule : row_rules()) {
    if (rule.fix == nullptr) {
      continue;
    }
    INFERSCALE_RETURN_IF_ERROR(
        connection.run(std::string(rule.fix) + "(" + std::string(rule.find) + ")"));
    note(repair, std::string(rule.table) + " rows (" + rule.why + "): " + rule.repair,
         connection.changes());
  }
  return Status();
}

Result<bool> pages_sound(Connection& connection) {
  INFERSCALE_ASSIGN_OR_RETURN(Statement statement,
                              connection.prepare_once("PRAGMA integrity_check(1)"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool row, statement.step());
  return row && statement.text(0) == "ok";
}

Status stopped() { return unavailable("stopped; what was repaired until here is kept"); }

}  // namespace

Status SqliteCatalog::rebuild_indexes(CatalogRepair& repair) {
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  INFERSCALE_ASSIGN_OR_RETURN(const bool sound, pages_sound(write.connection));
  if (sound) {
    return Status();
  }
  INFERSCALE_RETURN_IF_ERROR(write.connection.run("REINDEX"));
  note(repair, "database indexes built again", 1);
  return write.transaction.commit();
}

Status SqliteCatalog::rebuild_keywords(CatalogRepair& repair) {
  const Status found = check_keyword_index();
  if (found.ok() || found.code() != StatusCode::kDataLoss) {
    return found;
  }
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  for (const std::string_view sql : {"INSERT INTO keywords(keywords) VALUES('rebuild')",
                                     "INSERT INTO keywords(keywords) VALUES('optimize')"}) {
    INFERSCALE_RETURN_IF_ERROR(write.connection.run(sql));
  }
  note(repair, "keyword index built again", 1);
  return write.transaction.commit();
}

Result<CatalogRepair> SqliteCatalog::repair(const GoOn& go_on) {
  CatalogRepair repair;
  INFERSCALE_RETURN_IF_ERROR(rebuild_indexes(repair));
  if (go_on && !go_on()) {
    return stopped();
  }
  {
    INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
    INFERSCALE_RETURN_IF_ERROR(write.connection.exec(kCreateDoomed));
    INFERSCALE_RETURN_IF_ERROR(accept_unsound_rows(write.connection, repair));
    INFERSCALE_RETURN_IF_ERROR(mend_facts(writer_, repair));
    INFERSCALE_RETURN_IF_ERROR(drop_bad_vectors(write.connection, repair));
    INFERSCALE_RETURN_IF_ERROR(apply_rules(write.connection, repair));
    INFERSCALE_RETURN_IF_ERROR(renew_checksums(write.connection).status());  // what they mended
    INFERSCALE_RETURN_IF_ERROR(drop_doomed(write.connection, repair));
    INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  }
  if (go_on && !go_on()) {
    return stopped();
  }
  INFERSCALE_RETURN_IF_ERROR(rebuild_keywords(repair));
  if (!repair.actions.empty()) {
    INFERSCALE_RETURN_IF_ERROR(empty_log());  // what was dropped leaves the log, too
  }
  return repair;
}

Result<std::vector<RecordKey>> SqliteCatalog::drop_records(std::span<const RecordKey> keys) {
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  INFERSCALE_RETURN_IF_ERROR(write.connection.exec(kCreateDoomed));
  for (const RecordKey& key : keys) {
    INFERSCALE_RETURN_IF_ERROR(
        write.connection.run("INSERT OR IGNORE INTO temp.doomed_records"
                             " SELECT pk FROM records WHERE key = ?1",
                             key.value));
  }
  CatalogRepair repair;
  INFERSCALE_RETURN_IF_ERROR(drop_doomed(write.connection, repair));
  INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  return std::move(repair.records);
}

Result<RecordPage> SqliteCatalog::record_page(std::int64_t after, std::size_t limit) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      reader.connection().prepare(
          "SELECT r.pk, r.stale, f.id, r.version, r.fingerprint, r.context, r.key, r.context_id,"
          " r.scope_hash, r.n_tokens FROM records r LEFT JOIN facts f ON f.pk = r.fact"
          " WHERE r.pk > ?1 AND r.retired = 0 ORDER BY r.pk LIMIT ?2"));
  statement.with(after, static_cast<std::int64_t>(limit));
  RecordPage page;
  INFERSCALE_RETURN_IF_ERROR(statement.for_each([&](const Statement& row) {
    RecordPage::Row out;
    out.row = row.integer(0);
    out.stale = row.integer(1) != 0;
    out.entry.fact = {row.text(2), static_cast<std::uint32_t>(row.integer(3))};
    out.entry.model_fingerprint = row.hash(4);
    out.entry.context = row.text(5);
    out.entry.key = RecordKey{row.hash(6)};
    out.entry.context_id = row.hash(7);
    out.entry.scope = row.hash(8);
    out.entry.n_tokens = static_cast<std::uint32_t>(row.integer(9));
    page.rows.push_back(std::move(out));
  }));
  return page;
}

}  // namespace inferscale::sqlite
