#include "catalog/sqlite/fact_rows.h"

#include <fmt/format.h>

#include <utility>

#include "base/hash.h"
#include "base/utf8.h"
#include "catalog/sqlite/row_checksum.h"

namespace inferscale::sqlite {
namespace {

constexpr std::string_view kSelectById =
    "SELECT f.pk, f.scope, s.owner, f.id, o.tenant, o.user, s.agent, s.run, f.version, f.text,"
    " f.metadata, f.event_time, f.event_offset, f.ingest_time,"
    " f.checksum IS inferscale_checksum(f.id, f.scope, f.version, f.ingest_time, f.event_time,"
    "  f.event_offset, f.text, f.metadata)"
    " FROM facts f JOIN scopes s ON s.pk = f.scope JOIN owners o ON o.pk = s.owner"
    " WHERE f.id = ?1";
constexpr std::string_view kSelectByPk =
    "SELECT f.pk, f.scope, s.owner, f.id, o.tenant, o.user, s.agent, s.run, f.version, f.text,"
    " f.metadata, f.event_time, f.event_offset, f.ingest_time,"
    " f.checksum IS inferscale_checksum(f.id, f.scope, f.version, f.ingest_time, f.event_time,"
    "  f.event_offset, f.text, f.metadata)"
    " FROM facts f JOIN scopes s ON s.pk = f.scope JOIN owners o ON o.pk = s.owner"
    " WHERE f.pk = ?1";

/// Of a row of the statements above.
Result<FactRow> read_row(Connection& connection, const Statement& row) {
  FactRow result{row.integer(0), row.integer(1), row.integer(2), {}, row.integer(14) == 1};
  Fact& fact = result.fact;
  fact.sequence = result.pk;
  fact.id = row.text(3);
  fact.scope = Scope{row.text(4), row.text(5), row.text(6), row.text(7)};
  fact.version = static_cast<std::uint32_t>(row.integer(8));
  fact.text = row.text(9);
  fact.metadata = row.text(10);
  fact.event_time = row.optional_integer(11);
  fact.event_offset_minutes = static_cast<int>(row.integer(12));
  fact.ingest_time = row.integer(13);
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement sources,
      connection.prepare("SELECT turn_id, checksum IS inferscale_checksum(fact, position, turn_id)"
                         " FROM fact_sources WHERE fact = ?1 ORDER BY position"));
  sources.with(result.pk);
  INFERSCALE_RETURN_IF_ERROR(sources.for_each([&](const Statement& s) {
    fact.source_turns.push_back(s.text(0));
    result.sound = result.sound && s.integer(1) == 1;
  }));
  return result;
}

template <typename Key>
Result<std::optional<FactRow>> find_by(Connection& connection, std::string_view sql, Key key) {
  INFERSCALE_ASSIGN_OR_RETURN(Statement statement, connection.prepare(sql));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.with(key).step());
  if (!found) {
    return std::optional<FactRow>();
  }
  INFERSCALE_ASSIGN_OR_RETURN(FactRow row, read_row(connection, statement));
  return std::optional<FactRow>(std::move(row));
}

}  // namespace

Result<std::optional<FactRow>> find_fact(Connection& connection, std::string_view id) {
  return find_by(connection, kSelectById, id);
}

Result<FactRow> readable_fact(Connection& connection, const Scope& request, std::string_view id) {
  INFERSCALE_ASSIGN_OR_RETURN(std::optional<FactRow> row, find_fact(connection, id));
  if (!row || !scope_permits(request, row->fact.scope)) {
    return not_found(
        fmt::format("no fact with id {} in scope {}", utf8_prefix(id, 64), to_string(request)));
  }
  return *std::move(row);
}

Result<FactRow> writable_fact(Connection& connection, const Scope& request, std::string_view id) {
  INFERSCALE_ASSIGN_OR_RETURN(FactRow row, readable_fact(connection, request, id));
  if (!may_write(request, row.fact.scope)) {
    return permission_denied(
        fmt::format("fact {} is shared: only a request in its own scope ({}) may "
                    "change it",
                    utf8_prefix(id, 64), to_string(row.fact.scope)));
  }
  return row;
}

Status check_sound(const FactRow& row) {
  return row.sound ? Status() : unsound_row("fact " + row.fact.id);
}

Result<std::vector<Fact>> load_facts(Connection& connection, std::span<const std::int64_t> pks) {
  std::vector<Fact> facts;
  facts.reserve(pks.size());
  for (const std::int64_t pk : pks) {
    INFERSCALE_ASSIGN_OR_RETURN(std::optional<FactRow> row, find_by(connection, kSelectByPk, pk));
    if (row) {
      INFERSCALE_RETURN_IF_ERROR(check_sound(*row));
      facts.push_back(std::move(row->fact));
    }
  }
  return facts;
}

Result<std::vector<FactVersion>> load_history(Connection& connection, std::int64_t fact) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT version, text, metadata, event_time, event_offset, valid_from,"
                         " valid_to, checksum IS inferscale_checksum(fact, version, valid_from,"
                         "  valid_to, event_time, event_offset, text, metadata)"
                         " FROM fact_history WHERE fact = ?1 ORDER BY version"));
  std::vector<FactVersion> versions;
  bool sound = true;
  INFERSCALE_RETURN_IF_ERROR(statement.with(fact).for_each([&](const Statement& old) {
    sound = sound && old.integer(7) == 1;
    versions.push_back({static_cast<std::uint32_t>(old.integer(0)), "", old.text(1), old.text(2),
                        old.optional_integer(3), static_cast<int>(old.integer(4)), old.integer(5),
                        old.integer(6)});
  }));
  if (!sound) {
    return unsound_row(fmt::format("the history of the fact in row {}", fact));
  }
  return versions;
}

Result<std::optional<std::string>> find_duplicate(Connection& connection, std::int64_t scope,
                                                  const Hash128& hash) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT id FROM facts WHERE scope = ?1 AND content_hash = ?2"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.with(scope, hash).step());
  return found ? std::optional<std::string>(statement.text(0)) : std::nullopt;
}

Hash128 content_hash(std::string_view text, std::optional<TimestampUs> event_time) {
  HashMessage message;
  message.add_text(text).add_u32(event_time ? 1 : 0);
  message.add_u64(static_cast<std::uint64_t>(event_time.value_or(0)));
  return sha256_128(message.bytes());
}

Result<std::optional<Turn>> find_turn(Connection& connection, const ScopeRow& scope,
                                      std::string_view id) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT speaker, role, text, event_time, event_offset,"
                         " checksum IS inferscale_checksum(scope, id, event_time, event_offset,"
                         "  speaker, role, text) FROM turns WHERE scope = ?1 AND id = ?2"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.with(scope.pk, id).step());
  if (!found) {
    return std::optional<Turn>();
  }
  if (statement.integer(5) != 1) {
    return unsound_row("turn " + std::string(id));
  }
  return std::optional<Turn>(Turn{std::string(id), scope.scope, statement.text(0),
                                  statement.text(1), statement.text(2), statement.integer(3),
                                  static_cast<int>(statement.integer(4))});
}

Status insert_turn(Connection& connection, std::int64_t scope, const Turn& turn) {
  return connection.run(
      "INSERT INTO turns(scope, id, event_time, event_offset, speaker, role, text, checksum)"
      " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, inferscale_checksum(?1, ?2, ?3, ?4, ?5, ?6, ?7))"
      " ON CONFLICT DO NOTHING",
      scope, std::string_view(turn.id), turn.event_time, std::int64_t{turn.event_offset_minutes},
      std::string_view(turn.speaker), std::string_view(turn.role), std::string_view(turn.text));
}

Status insert_sources(Connection& connection, std::int64_t fact,
                      std::span<const std::string> turns) {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    INFERSCALE_RETURN_IF_ERROR(
        connection.run("INSERT INTO fact_sources(fact, position, turn_id, checksum)"
                       " VALUES(?1, ?2, ?3, inferscale_checksum(?1, ?2, ?3))",
                       fact, static_cast<std::int64_t>(i), std::string_view(turns[i])));
  }
  return Status();
}

Status insert_vectors(Connection& connection, std::int64_t fact, const TextVectors& vectors) {
  if (vectors.values.empty()) {
    return Status();
  }
  const std::string_view id = vectors.embedder_id;
  const auto dim = static_cast<std::int64_t>(vectors.dim);
  INFERSCALE_RETURN_IF_ERROR(connection.run(
      "INSERT INTO embedders(id, dim) VALUES(?1, ?2) ON CONFLICT DO NOTHING", id, dim));
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::optional<std::int64_t> embedder,
      connection.find_integer("SELECT pk FROM embedders WHERE id = ?1 AND dim = ?2", id, dim));
  if (!embedder) {
    return invalid_argument(fmt::format(
        "vectors of embedder {} are stored with another dim than {}: give the other model its own "
        "embedder id",
        id, dim));
  }
  return connection.run(
      "INSERT INTO vectors(fact, embedder, chunks, data) VALUES(?1, ?2, ?3, ?4) "
      "ON CONFLICT DO NOTHING",
      fact, *embedder, static_cast<std::int64_t>(vectors.chunks()),
      std::as_bytes(std::span(vectors.values)));
}

Status index_keywords(Connection& connection, const FactRow& row) {
  return connection.run("INSERT INTO keywords(rowid, text) VALUES(?1, ?2)", row.pk,
                        std::string_view(KeywordTokenizer::index_text(row.owner, row.fact.text)));
}

Status unindex_keywords(Connection& connection, const FactRow& row) {
  return connection.run("INSERT INTO keywords(keywords, rowid, text) VALUES('delete', ?1, ?2)",
                        row.pk,
                        std::string_view(KeywordTokenizer::index_text(row.owner, row.fact.text)));
}

}  // namespace inferscale::sqlite
