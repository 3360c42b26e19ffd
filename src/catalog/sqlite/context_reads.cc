// What facts are encoded behind: the turns before a turn, who speaks, and the nearest facts.
#include <algorithm>
#include <cstring>
#include <limits>

#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

std::int64_t as_limit(std::size_t n) {
  return static_cast<std::int64_t>(std::min<std::size_t>(n, INT32_MAX));
}

/// The vectors of one fact: the embedding model's row and its dimension, and one row per chunk.
struct FactVectors {
  std::int64_t embedder = 0;
  std::size_t dim = 0;
  std::vector<float> values;
};

Status read_floats(const Statement& row, int column, std::vector<float>& values) {
  const std::span<const std::byte> data = row.blob(column);
  if (data.size() % sizeof(float) != 0) {
    return data_loss("catalog: a stored vector has an impossible size: restore a backup");
  }
  values.resize(data.size() / sizeof(float));
  if (!data.empty()) {
    std::memcpy(values.data(), data.data(), data.size());
  }
  return Status();
}

/// Those that were written last, when several embedding models have left some.
Result<FactVectors> latest_vectors(Connection& connection, std::int64_t fact) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement row, connection.prepare("SELECT v.embedder, e.dim, v.data FROM vectors v"
                                        " JOIN embedders e ON e.pk = v.embedder WHERE v.fact = ?1"
                                        " ORDER BY v.pk DESC LIMIT 1"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, row.with(fact).step());
  FactVectors vectors;
  if (found) {
    vectors.embedder = row.integer(0);
    vectors.dim = static_cast<std::size_t>(row.integer(1));
    INFERSCALE_RETURN_IF_ERROR(read_floats(row, 2, vectors.values));
  }
  return vectors;
}

/// The largest product of a chunk of one with a chunk of the other.
double similarity(std::span<const float> a, std::span<const float> b, std::size_t dim) {
  double best = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i + dim <= a.size(); i += dim) {
    for (std::size_t k = 0; k + dim <= b.size(); k += dim) {
      float sum = 0;
      for (std::size_t d = 0; d < dim; ++d) {
        sum += a[i + d] * b[k + d];
      }
      best = std::max(best, static_cast<double>(sum));
    }
  }
  return best;
}

}  // namespace

Result<std::vector<Fact>> SqliteCatalog::facts_before(const Scope& exact, std::int64_t before,
                                                      std::size_t n) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  std::vector<std::int64_t> pks;
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<ScopeRow> scope, find_scope(connection, exact));
  if (scope) {
    INFERSCALE_ASSIGN_OR_RETURN(
        Statement statement, connection.prepare("SELECT pk FROM facts WHERE scope = ?1 AND pk < ?2"
                                                " ORDER BY pk DESC LIMIT ?3"));
    statement.with(scope->pk, before, as_limit(n));
    INFERSCALE_RETURN_IF_ERROR(
        statement.for_each([&](const Statement& row) { pks.push_back(row.integer(0)); }));
  }
  std::reverse(pks.begin(), pks.end());
  return load_facts(connection, pks);
}

Result<std::vector<Turn>> SqliteCatalog::turns_before(const Scope& exact, std::string_view turn_id,
                                                      std::size_t n) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  std::vector<Turn> turns;
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<ScopeRow> scope, find_scope(connection, exact));
  if (!scope) {
    return turns;
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT id FROM turns WHERE scope = ?1 AND pk < (SELECT pk FROM turns"
                         " WHERE scope = ?1 AND id = ?2) ORDER BY pk DESC LIMIT ?3"));
  statement.with(scope->pk, turn_id, as_limit(n));
  std::vector<std::string> ids;  // newest first
  INFERSCALE_RETURN_IF_ERROR(
      statement.for_each([&](const Statement& row) { ids.push_back(row.text(0)); }));
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    INFERSCALE_ASSIGN_OR_RETURN(std::optional<Turn> turn, find_turn(connection, *scope, *id));
    if (turn) {
      turns.push_back(*std::move(turn));
    }
  }
  return turns;
}

Result<std::vector<std::string>> SqliteCatalog::speakers(const Scope& exact, std::size_t limit) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  std::vector<std::string> names;
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<ScopeRow> scope, find_scope(connection, exact));
  if (!scope) {
    return names;
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT speaker FROM (SELECT speaker, count(*) AS said, min(pk) AS first"
                         " FROM turns WHERE scope = ?1 AND speaker <> '' GROUP BY speaker"
                         " ORDER BY said DESC, first LIMIT ?2) ORDER BY first"));
  statement.with(scope->pk, as_limit(limit));
  INFERSCALE_RETURN_IF_ERROR(
      statement.for_each([&](const Statement& row) { names.push_back(row.text(0)); }));
  return names;
}

Result<std::vector<Fact>> SqliteCatalog::nearest_facts(const FactRef& fact, std::size_t n) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  Connection& connection = reader.connection();
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<FactRow> row, find_fact(connection, fact.id));
  if (!row || row->fact.version != fact.version) {
    return std::vector<Fact>();
  }
  INFERSCALE_ASSIGN_OR_RETURN(const FactVectors own, latest_vectors(connection, row->pk));
  if (own.dim == 0 || own.values.empty()) {
    return std::vector<Fact>();
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement others,
      connection.prepare("SELECT f.pk, v.data FROM facts f JOIN vectors v ON v.fact = f.pk"
                         " WHERE f.scope = ?1 AND v.embedder = ?2 AND f.pk < ?3"));
  others.with(row->scope, own.embedder, row->pk);
  std::vector<std::pair<double, std::int64_t>> ranked;
  std::vector<float> values;
  while (true) {
    INFERSCALE_ASSIGN_OR_RETURN(const bool more, others.step());
    if (!more) {
      break;
    }
    INFERSCALE_RETURN_IF_ERROR(read_floats(others, 1, values));
    ranked.emplace_back(-similarity(own.values, values, own.dim), others.integer(0));
  }
  const std::size_t taken = std::min(n, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(taken),
                    ranked.end());
  std::vector<std::int64_t> pks;
  for (std::size_t i = 0; i < taken; ++i) {
    pks.push_back(ranked[i].second);
  }
  std::sort(pks.begin(), pks.end());
  return load_facts(connection, pks);
}

}  // namespace inferscale::sqlite
