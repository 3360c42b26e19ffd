#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"
#include "catalog/sqlite/validate.h"

namespace inferscale::sqlite {
namespace {

constexpr std::size_t kIdBytes = 16;

Result<std::vector<std::string>> make_ids(std::size_t count) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, random_bytes(kIdBytes * count));
  std::vector<std::string> ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    Hash128 random;
    std::memcpy(random.bytes.data(), bytes.data() + kIdBytes * i, kIdBytes);
    ids[i] = "f_" + random.to_hex();
  }
  return ids;
}

/// One item of a batch. `id` is used unless the fact is there already.
Result<AddOutcome> add_one(Connection& connection, KeywordTokenizer& tokenizer, const NewFact& item,
                           const ScopeRow& scope, std::string id, TimestampUs now) {
  const Hash128 hash = content_hash(item.text, item.event_time);
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> existing,
                              find_duplicate(connection, scope.pk, hash));
  if (existing) {
    return AddOutcome{*existing, true};
  }
  INFERSCALE_RETURN_IF_ERROR(connection.run(
      "INSERT INTO facts(id, scope, version, content_hash, n_terms, ingest_time, event_time,"
      " event_offset, text, metadata, checksum) VALUES(?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8, ?9,"
      " inferscale_checksum(?1, ?2, 1, ?5, ?6, ?7, ?8, ?9))",
      std::string_view(id), scope.pk, hash, tokenizer.count_terms(item.text), now, item.event_time,
      std::int64_t{item.event_offset_minutes}, std::string_view(item.text),
      std::string_view(item.metadata)));
  FactRow row{connection.last_insert_rowid(), scope.pk, scope.owner, {}};
  row.fact.text = item.text;
  INFERSCALE_RETURN_IF_ERROR(insert_sources(connection, row.pk, item.source_turns));
  INFERSCALE_RETURN_IF_ERROR(index_keywords(connection, row));
  INFERSCALE_RETURN_IF_ERROR(insert_vectors(connection, row.pk, item.vectors));
  return AddOutcome{std::move(id), false};
}

/// The fact as the patch leaves it.
Fact patched(const Fact& before, const FactPatch& patch) {
  Fact after = before;
  after.text = patch.text.value_or(before.text);
  after.metadata = patch.metadata.value_or(before.metadata);
  if (patch.event_time) {
    after.event_time = patch.event_time;
    after.event_offset_minutes = patch.event_offset_minutes;
  }
  return after;
}

bool same_content(const Fact& a, const Fact& b) {
  return a.text == b.text && a.event_time == b.event_time &&
         a.event_offset_minutes == b.event_offset_minutes && same_metadata(a.metadata, b.metadata);
}

Status check_patch(const FactPatch& patch) {
  if (patch.text) {
    INFERSCALE_RETURN_IF_ERROR(check_fact_text("patch", *patch.text));
  }
  if (patch.metadata) {
    INFERSCALE_RETURN_IF_ERROR(check_metadata("patch", *patch.metadata));
  }
  INFERSCALE_RETURN_IF_ERROR(check_time("patch", patch.event_time, patch.event_offset_minutes));
  return check_vectors("patch", patch.vectors);
}

/// Refuses content that another live fact of the scope has already.
Status check_unique(Connection& connection, const FactRow& row, const Fact& after,
                    const Hash128& hash) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> existing,
                              find_duplicate(connection, row.scope, hash));
  if (existing && *existing != after.id) {
    return conflict(
        fmt::format("fact {} says exactly this already: delete one of the two instead", *existing));
  }
  return Status();
}

Status archive(Connection& connection, const FactRow& row, TimestampUs valid_to) {
  const Fact& fact = row.fact;
  return connection.run(
      "INSERT INTO fact_history(fact, version, valid_from, valid_to, event_time, event_offset,"
      " text, metadata, checksum) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,"
      " inferscale_checksum(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8))",
      row.pk, std::int64_t{fact.version}, fact.ingest_time, valid_to, fact.event_time,
      std::int64_t{fact.event_offset_minutes}, std::string_view(fact.text),
      std::string_view(fact.metadata));
}

Status replace_text(Connection& connection, const FactRow& before, const FactRow& after,
                    const TextVectors& vectors) {
  INFERSCALE_RETURN_IF_ERROR(unindex_keywords(connection, before));
  INFERSCALE_RETURN_IF_ERROR(index_keywords(connection, after));
  INFERSCALE_RETURN_IF_ERROR(connection.run("DELETE FROM vectors WHERE fact = ?1", before.pk));
  return insert_vectors(connection, after.pk, vectors);
}

}  // namespace

Result<std::vector<AddOutcome>> SqliteCatalog::add_facts(std::span<const NewFact> facts) {
  for (std::size_t i = 0; i < facts.size(); ++i) {
    INFERSCALE_RETURN_IF_ERROR(check_new_fact(fmt::format("facts[{}]", i), facts[i]));
  }
  std::vector<AddOutcome> outcomes;
  if (facts.empty()) {
    return outcomes;
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::string> ids, make_ids(facts.size()));
  outcomes.reserve(facts.size());
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  const TimestampUs now = now_us();
  std::optional<ScopeRow> scope;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (!scope || scope->scope != facts[i].scope) {
      INFERSCALE_ASSIGN_OR_RETURN(scope, ensure_scope(write.connection, facts[i].scope));
    }
    Result<AddOutcome> outcome =
        add_one(write.connection, write.tokenizer, facts[i], *scope, std::move(ids[i]), now);
    if (!outcome.ok()) {
      return outcome.status().with_context(fmt::format("facts[{}]", i));
    }
    outcomes.push_back(std::move(outcome).value());
  }
  INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  return outcomes;
}

Result<std::uint64_t> SqliteCatalog::add_turns(std::span<const Turn> turns) {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    INFERSCALE_RETURN_IF_ERROR(check_turn(fmt::format("turns[{}]", i), turns[i]));
  }
  std::uint64_t added = 0;
  if (turns.empty()) {
    return added;
  }
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  std::optional<ScopeRow> scope;
  for (const Turn& turn : turns) {
    if (!scope || scope->scope != turn.scope) {
      INFERSCALE_ASSIGN_OR_RETURN(scope, ensure_scope(write.connection, turn.scope));
    }
    INFERSCALE_RETURN_IF_ERROR(insert_turn(write.connection, scope->pk, turn));
    added += static_cast<std::uint64_t>(write.connection.changes());
  }
  INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  return added;
}

Result<Fact> SqliteCatalog::update_fact(const Scope& request, std::string_view id,
                                        const FactPatch& patch) {
  INFERSCALE_RETURN_IF_ERROR(check_patch(patch));
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  Connection& connection = write.connection;
  INFERSCALE_ASSIGN_OR_RETURN(const FactRow before, writable_fact(connection, request, id));
  INFERSCALE_RETURN_IF_ERROR(check_sound(before));
  if (patch.if_version && *patch.if_version != before.fact.version) {
    return conflict(
        fmt::format("fact {} has version {}, not {}: read it again and repeat the change", id,
                    before.fact.version, *patch.if_version));
  }
  FactRow after{before.pk, before.scope, before.owner, patched(before.fact, patch)};
  if (same_content(before.fact, after.fact)) {
    return before.fact;
  }
  const Hash128 hash = content_hash(after.fact.text, after.fact.event_time);
  INFERSCALE_RETURN_IF_ERROR(check_unique(connection, before, after.fact, hash));
  after.fact.version = before.fact.version + 1;
  // A clock that was set back must not make a version end before it began.
  after.fact.ingest_time = std::max(now_us(), before.fact.ingest_time);
  INFERSCALE_RETURN_IF_ERROR(archive(connection, before, after.fact.ingest_time));
  INFERSCALE_RETURN_IF_ERROR(connection.run(
      "UPDATE facts SET version = ?2, content_hash = ?3, n_terms = ?4, ingest_time = ?5,"
      " event_time = ?6, event_offset = ?7, text = ?8, metadata = ?9,"
      " checksum = inferscale_checksum(id, scope, ?2, ?5, ?6, ?7, ?8, ?9) WHERE pk = ?1",
      after.pk, std::int64_t{after.fact.version}, hash,
      write.tokenizer.count_terms(after.fact.text), after.fact.ingest_time, after.fact.event_time,
      std::int64_t{after.fact.event_offset_minutes}, std::string_view(after.fact.text),
      std::string_view(after.fact.metadata)));
  if (after.fact.text != before.fact.text) {
    INFERSCALE_RETURN_IF_ERROR(replace_text(connection, before, after, patch.vectors));
  }
  INFERSCALE_RETURN_IF_ERROR(
      connection.run("DELETE FROM encode_failures WHERE fact = ?1", after.pk));
  // Records that saw the old version stay in use until they are encoded again.
  INFERSCALE_RETURN_IF_ERROR(
      connection.run("UPDATE records SET stale = 1 WHERE stale = 0 AND pk IN"
                     " (SELECT record FROM record_facts WHERE fact = ?1)",
                     after.pk));
  INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  return after.fact;
}

}  // namespace inferscale::sqlite
