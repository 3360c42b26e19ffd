#include <algorithm>

#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

constexpr std::string_view kRecordByPk =
    "SELECT r.pk, f.id, r.version, r.fingerprint, r.context, r.key, r.context_id, r.scope_hash,"
    " r.n_tokens, r.stale FROM records r LEFT JOIN facts f ON f.pk = r.fact WHERE r.pk = ?1";

// A fact that no record stands for is served as text: those come first.
constexpr std::string_view kUnencoded =
    " FROM facts f WHERE f.pk > ?2 AND NOT EXISTS (SELECT 1 FROM records r WHERE r.fact = f.pk"
    " AND r.fingerprint = ?1 AND r.retired = 0 AND r.version = f.version)";
// Then those whose record is usable but not what it would be if it were made now.
constexpr std::string_view kOutdated =
    " FROM (SELECT fact, version FROM records WHERE fingerprint = ?1 AND retired = 0"
    " AND context < ?3 UNION ALL SELECT fact, version FROM records WHERE fingerprint = ?1"
    " AND retired = 0 AND context > ?3 UNION SELECT fact, version FROM records"
    " WHERE fingerprint = ?1 AND stale = 1 AND retired = 0) r"
    " JOIN facts f ON f.pk = r.fact AND f.version = r.version WHERE f.pk > ?2";

// ?4 is the time, or NULL: then facts that wait after a failure are given, too.
constexpr std::string_view kDue =
    " AND (?4 IS NULL OR NOT EXISTS (SELECT 1 FROM encode_failures e WHERE e.fact = f.pk"
    " AND e.fingerprint = ?1 AND e.context = ?3 AND e.version = f.version"
    " AND (e.next_try IS NULL OR (e.next_try > ?4 AND e.next_try <= ?4 + ?5))))";

Result<std::vector<std::int64_t>> read_pks(Statement& statement) {
  std::vector<std::int64_t> pks;
  INFERSCALE_RETURN_IF_ERROR(
      statement.for_each([&](const Statement& row) { pks.push_back(row.integer(0)); }));
  return pks;
}

Result<RecordEntry> load_record(Connection& connection, std::int64_t pk) {
  INFERSCALE_ASSIGN_OR_RETURN(Statement row, connection.prepare(kRecordByPk));
  INFERSCALE_RETURN_IF_ERROR(row.with(pk).step().status());
  RecordEntry entry;
  entry.fact = {row.text(1), static_cast<std::uint32_t>(row.integer(2))};
  entry.model_fingerprint = row.hash(3);
  entry.context = row.text(4);
  entry.key = RecordKey{row.hash(5)};
  entry.context_id = row.hash(6);
  entry.scope = row.hash(7);
  entry.n_tokens = static_cast<std::uint32_t>(row.integer(8));
  entry.stale = row.integer(9) != 0;
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement facts,
      connection.prepare("SELECT f.id, d.version FROM record_facts d JOIN facts f ON f.pk = d.fact"
                         " WHERE d.record = ?1 ORDER BY d.fact, d.version"));
  INFERSCALE_RETURN_IF_ERROR(facts.with(pk).for_each([&](const Statement& s) {
    entry.attended_facts.push_back({s.text(0), static_cast<std::uint32_t>(s.integer(1))});
  }));
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement turns,
      connection.prepare("SELECT t.id FROM record_turns d JOIN turns t ON t.pk = d.turn"
                         " WHERE d.record = ?1 ORDER BY d.turn"));
  INFERSCALE_RETURN_IF_ERROR(turns.with(pk).for_each(
      [&](const Statement& s) { entry.attended_turns.push_back(s.text(0)); }));
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement seen,
      connection.prepare("SELECT s.key FROM record_records d JOIN records s ON s.pk = d.seen"
                         " WHERE d.record = ?1 ORDER BY d.seen"));
  INFERSCALE_RETURN_IF_ERROR(seen.with(pk).for_each(
      [&](const Statement& s) { entry.attended_records.push_back(RecordKey{s.hash(0)}); }));
  return entry;
}

Result<std::vector<std::int64_t>> select_to_encode(Connection& connection, std::string_view from,
                                                   const EncodeQuery& query, std::size_t limit) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare(std::string("SELECT DISTINCT f.pk") + std::string(from) +
                         std::string(kDue) + " AND ?3 IS NOT NULL ORDER BY f.pk LIMIT ?6"));
  statement.with(query.model_fingerprint, query.after_sequence, std::string_view(query.context),
                 query.due_at, kMaxEncodeRetryUs,
                 static_cast<std::int64_t>(std::min<std::size_t>(limit, INT32_MAX)));
  return read_pks(statement);
}

}  // namespace

Result<std::vector<std::optional<RecordEntry>>> SqliteCatalog::records_of(
    std::span<const FactRef> facts, const Hash128& model_fingerprint) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  std::vector<std::optional<RecordEntry>> entries(facts.size());
  for (std::size_t i = 0; i < facts.size(); ++i) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::optional<std::int64_t> pk,
        connection.find_integer(
            "SELECT r.pk FROM facts f JOIN records r ON r.fact = f.pk WHERE f.id = ?1"
            " AND r.version = ?2 AND r.fingerprint = ?3 AND r.retired = 0",
            std::string_view(facts[i].id), std::int64_t{facts[i].version}, model_fingerprint));
    if (pk) {
      INFERSCALE_ASSIGN_OR_RETURN(entries[i], load_record(connection, *pk));
    }
  }
  return entries;
}

Result<EncodePage> SqliteCatalog::facts_to_encode(const EncodeQuery& query, std::size_t limit) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  EncodePage page;
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::int64_t> pks,
                              select_to_encode(connection, kUnencoded, query, limit));
  page.without_record = pks.size();
  if (pks.size() < limit) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> outdated,
                                select_to_encode(connection, kOutdated, query, limit - pks.size()));
    pks.insert(pks.end(), outdated.begin(), outdated.end());
  }
  INFERSCALE_ASSIGN_OR_RETURN(page.facts, load_facts(connection, pks));
  page.without_record = std::min(page.without_record, page.facts.size());
  return page;
}

Result<std::uint64_t> SqliteCatalog::count_to_encode(const Hash128& model_fingerprint,
                                                     std::string_view context) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  std::uint64_t total = 0;
  for (const std::string_view from : {kUnencoded, kOutdated}) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::int64_t n,
        reader.connection().integer(
            "SELECT count(DISTINCT f.pk)" + std::string(from) + " AND ?3 IS NOT NULL",
            model_fingerprint, std::int64_t{0}, context));
    total += static_cast<std::uint64_t>(n);
  }
  return total;
}

Result<std::vector<RecordKey>> SqliteCatalog::shared_records(const Hash128& scope,
                                                             const Hash128& model_fingerprint,
                                                             std::string_view context) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      reader.connection().prepare("SELECT key FROM records WHERE fingerprint = ?1 AND context = ?2"
                                  " AND scope_hash = ?3 AND fact IS NULL AND retired = 0"
                                  " ORDER BY pk"));
  std::vector<RecordKey> keys;
  INFERSCALE_RETURN_IF_ERROR(
      statement.with(model_fingerprint, context, scope).for_each([&](const Statement& row) {
        keys.push_back(RecordKey{row.hash(0)});
      }));
  return keys;
}

Result<std::vector<RecordKey>> SqliteCatalog::all_record_keys() {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      reader.connection().prepare("SELECT DISTINCT key FROM records WHERE retired = 0"));
  std::vector<RecordKey> keys;
  INFERSCALE_RETURN_IF_ERROR(
      statement.for_each([&](const Statement& row) { keys.push_back(RecordKey{row.hash(0)}); }));
  return keys;
}

Result<std::vector<RecordEntry>> SqliteCatalog::dependants_of(std::string_view fact_id) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare(
          "WITH RECURSIVE seen_by(pk) AS ("
          " SELECT d.record FROM record_facts d JOIN facts f ON f.pk = d.fact WHERE f.id = ?1"
          " UNION SELECT e.record FROM record_records e JOIN seen_by s ON e.seen = s.pk)"
          " SELECT r.pk FROM seen_by s JOIN records r ON r.pk = s.pk WHERE r.retired = 0"
          " ORDER BY r.pk"));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> pks,
                              read_pks(statement.with(fact_id)));
  std::vector<RecordEntry> entries;
  entries.reserve(pks.size());
  for (const std::int64_t pk : pks) {
    INFERSCALE_ASSIGN_OR_RETURN(RecordEntry entry, load_record(connection, pk));
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace inferscale::sqlite
