// What failed to be encoded, how often, and when it is tried again.
#include <algorithm>

#include "base/utf8.h"
#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

constexpr std::size_t kMaxErrorBytes = 1024;

// The columns that read_failure takes; a failure of a superseded version counts for nothing.
constexpr std::string_view kSelect =
    "SELECT f.id, e.version, e.attempts, e.last_try, e.next_try, e.error FROM encode_failures e"
    " JOIN facts f ON f.pk = e.fact AND f.version = e.version"
    " WHERE e.fingerprint = ?1 AND e.context = ?2";

EncodeFailure read_failure(const Statement& row, const Hash128& model_fingerprint,
                           std::string_view context) {
  EncodeFailure failure;
  failure.fact = {row.text(0), static_cast<std::uint32_t>(row.integer(1))};
  failure.model_fingerprint = model_fingerprint;
  failure.context = context;
  failure.attempts = static_cast<std::uint32_t>(row.integer(2));
  failure.last_try = row.integer(3);
  failure.next_try = row.optional_integer(4);
  failure.error = row.text(5);
  return failure;
}

}  // namespace

Status SqliteCatalog::put_encode_failure(const EncodeFailure& failure) {
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<FactRow> row,
                              find_fact(write.connection, failure.fact.id));
  if (!row || row->fact.version != failure.fact.version) {
    return Status();
  }
  INFERSCALE_RETURN_IF_ERROR(write.connection.run(
      "INSERT OR REPLACE INTO encode_failures(fact, fingerprint, context, version, attempts,"
      " last_try, next_try, error) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
      row->pk, failure.model_fingerprint, std::string_view(failure.context),
      std::int64_t{failure.fact.version}, std::int64_t{failure.attempts}, failure.last_try,
      failure.next_try, utf8_prefix(failure.error, kMaxErrorBytes)));
  return write.transaction.commit();
}

Result<std::optional<EncodeFailure>> SqliteCatalog::encode_failure(const FactRef& fact,
                                                                   const Hash128& model_fingerprint,
                                                                   std::string_view context) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      reader.connection().prepare(std::string(kSelect) + " AND f.id = ?3 AND f.version = ?4"));
  statement.with(model_fingerprint, context, std::string_view(fact.id), std::int64_t{fact.version});
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.step());
  if (!found) {
    return std::optional<EncodeFailure>();
  }
  return std::optional<EncodeFailure>(read_failure(statement, model_fingerprint, context));
}

Result<std::vector<EncodeFailure>> SqliteCatalog::encode_failures(const Hash128& model_fingerprint,
                                                                  std::string_view context,
                                                                  std::size_t limit) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement, reader.connection().prepare(std::string(kSelect) +
                                                       " ORDER BY e.last_try DESC, f.pk LIMIT ?3"));
  statement.with(model_fingerprint, context,
                 static_cast<std::int64_t>(std::min<std::size_t>(limit, INT32_MAX)));
  std::vector<EncodeFailure> failures;
  INFERSCALE_RETURN_IF_ERROR(statement.for_each([&](const Statement& row) {
    failures.push_back(read_failure(row, model_fingerprint, context));
  }));
  return failures;
}

Result<EncodeFailureCounts> SqliteCatalog::count_encode_failures(const Hash128& model_fingerprint,
                                                                 std::string_view context) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      reader.connection().prepare(
          "SELECT count(e.next_try), count(*), min(e.next_try) FROM encode_failures e"
          " JOIN facts f ON f.pk = e.fact AND f.version = e.version"
          " WHERE e.fingerprint = ?1 AND e.context = ?2"));
  INFERSCALE_RETURN_IF_ERROR(statement.with(model_fingerprint, context).step().status());
  EncodeFailureCounts counts;
  counts.waiting = static_cast<std::uint64_t>(statement.integer(0));
  counts.given_up = static_cast<std::uint64_t>(statement.integer(1)) - counts.waiting;
  counts.next_try = statement.optional_integer(2);
  return counts;
}

}  // namespace inferscale::sqlite
