#include <cstring>

#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"
#include "catalog/sqlite/validate.h"

namespace inferscale::sqlite {
namespace {

struct EmbedderRow {
  std::int64_t pk = 0;
  std::size_t dim = 0;
};

Result<std::optional<EmbedderRow>> find_embedder(Connection& connection, std::string_view id) {
  INFERSCALE_ASSIGN_OR_RETURN(Statement statement,
                              connection.prepare("SELECT pk, dim FROM embedders WHERE id = ?1"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.with(id).step());
  if (!found) {
    return std::optional<EmbedderRow>();
  }
  return std::optional<EmbedderRow>(
      {statement.integer(0), static_cast<std::size_t>(statement.integer(1))});
}

/// Room for all rows at once: growing a vector of this size would copy it several times.
Status reserve_rows(Connection& connection, const std::vector<ScopeRow>& scopes,
                    std::int64_t embedder, VectorRows& rows) {
  std::int64_t chunks = 0;
  for (const ScopeRow& scope : scopes) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::int64_t n,
        connection.integer("SELECT count(*) FROM facts f JOIN vectors v ON v.fact = f.pk"
                           " WHERE f.scope = ?1 AND v.embedder = ?2",
                           scope.pk, embedder));
    chunks += n;
  }
  rows.fact_ids.reserve(static_cast<std::size_t>(chunks));
  rows.values.reserve(static_cast<std::size_t>(chunks) * rows.dim);
  return Status();
}

Status append_rows(Connection& connection, const ScopeRow& scope, std::int64_t embedder,
                   VectorRows& rows) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare(
          "SELECT f.id, v.chunks, v.data FROM facts f JOIN vectors v ON v.fact = f.pk"
          " WHERE f.scope = ?1 AND v.embedder = ?2 ORDER BY f.pk"));
  statement.with(scope.pk, embedder);
  while (true) {
    INFERSCALE_ASSIGN_OR_RETURN(const bool more, statement.step());
    if (!more) {
      return Status();
    }
    const auto chunks = static_cast<std::size_t>(statement.integer(1));
    const std::span<const std::byte> data = statement.blob(2);
    if (data.size() != chunks * rows.dim * sizeof(float)) {
      return data_loss("catalog: the vectors of fact " + statement.text(0) +
                       " do not have the size that is stored with them: restore a backup");
    }
    rows.fact_ids.insert(rows.fact_ids.end(), chunks, statement.text(0));
    const std::size_t before = rows.values.size();
    rows.values.resize(before + chunks * rows.dim);
    std::memcpy(rows.values.data() + before, data.data(), data.size());
  }
}

}  // namespace

Status SqliteCatalog::put_vectors(const FactRef& fact, const TextVectors& vectors) {
  if (vectors.values.empty()) {
    return invalid_argument("vectors must not be empty");
  }
  INFERSCALE_RETURN_IF_ERROR(check_vectors("", vectors));
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<FactRow> row,
                              find_fact(write.connection, fact.id));
  if (!row || row->fact.version != fact.version) {
    return Status();
  }
  INFERSCALE_RETURN_IF_ERROR(insert_vectors(write.connection, row->pk, vectors));
  return write.transaction.commit();
}

Result<VectorRows> SqliteCatalog::vectors(const Scope& request, std::string_view embedder_id) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  VectorRows rows;
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<EmbedderRow> embedder,
                              find_embedder(connection, embedder_id));
  if (!embedder) {
    return rows;
  }
  rows.dim = embedder->dim;
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeRow> scopes,
                              readable_scopes(connection, request));
  INFERSCALE_RETURN_IF_ERROR(reserve_rows(connection, scopes, embedder->pk, rows));
  for (const ScopeRow& scope : scopes) {
    INFERSCALE_RETURN_IF_ERROR(append_rows(connection, scope, embedder->pk, rows));
  }
  return rows;
}

Result<std::vector<Fact>> SqliteCatalog::facts_without_vectors(std::string_view embedder_id,
                                                               std::size_t limit) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<EmbedderRow> embedder,
                              find_embedder(connection, embedder_id));
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT f.pk FROM facts f WHERE NOT EXISTS (SELECT 1 FROM vectors v"
                         " WHERE v.fact = f.pk AND v.embedder = ?1) ORDER BY f.pk LIMIT ?2"));
  statement.with(embedder ? embedder->pk : std::int64_t{0},
                 static_cast<std::int64_t>(std::min<std::size_t>(limit, INT32_MAX)));
  std::vector<std::int64_t> pks;
  INFERSCALE_RETURN_IF_ERROR(
      statement.for_each([&](const Statement& row) { pks.push_back(row.integer(0)); }));
  return load_facts(connection, pks);
}

}  // namespace inferscale::sqlite
