// Taking what another catalog exported: ids, versions and times are kept, nothing is overwritten.
#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "catalog/sqlite/fact_rows.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"
#include "catalog/sqlite/validate.h"

namespace inferscale::sqlite {
namespace {

constexpr std::size_t kMaxIdBytes = 128;
constexpr std::size_t kMaxVersions = 10'000;
constexpr std::uint32_t kMaxVersion = 1U << 31;

bool is_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-';
  });
}

Status check_version(const std::string& item, const FactVersion& version) {
  INFERSCALE_RETURN_IF_ERROR(check_fact_text(item, version.text));
  INFERSCALE_RETURN_IF_ERROR(check_metadata(item, version.metadata));
  INFERSCALE_RETURN_IF_ERROR(check_time(item, version.event_time, version.event_offset_minutes));
  INFERSCALE_RETURN_IF_ERROR(check_time(item, version.valid_from, 0));
  return version.valid_to ? check_time(item, version.valid_to, 0)
                          : invalid_argument(item + ".valid_to: missing");
}

/// A version ends where the next begins; versions whose text was erased leave a gap.
Status check_history(const RestoredFact& item) {
  if (item.history.size() > kMaxVersions) {
    return invalid_argument(fmt::format("history: {} versions, at most {} are accepted",
                                        item.history.size(), kMaxVersions));
  }
  for (std::size_t i = 0; i < item.history.size(); ++i) {
    const FactVersion& version = item.history[i];
    const std::string name = fmt::format("history[{}]", i);
    INFERSCALE_RETURN_IF_ERROR(check_version(name, version));
    const bool last = i + 1 == item.history.size();
    const std::uint32_t next = last ? item.fact.version : item.history[i + 1].version;
    const TimestampUs begins = last ? item.fact.ingest_time : item.history[i + 1].valid_from;
    const TimestampUs ends = *version.valid_to;
    if (version.version < 1 || version.version >= next || version.valid_from > ends ||
        ends > begins || (version.version + 1 == next && ends != begins)) {
      return invalid_argument(
          name + ": its number and times do not fit those of the version that follows");
    }
  }
  return Status();
}

Status check_restored(const RestoredFact& item) {
  if (!is_id(item.fact.id)) {
    return invalid_argument(
        fmt::format("id: 1 to {} letters, digits, '_' and '-' are accepted", kMaxIdBytes));
  }
  if (item.fact.version < 1 || item.fact.version > kMaxVersion) {
    return invalid_argument("version: out of range");
  }
  NewFact fact;
  fact.scope = item.fact.scope;
  fact.text = item.fact.text;
  fact.metadata = item.fact.metadata;
  fact.event_time = item.fact.event_time;
  fact.event_offset_minutes = item.fact.event_offset_minutes;
  fact.source_turns = item.fact.source_turns;
  INFERSCALE_RETURN_IF_ERROR(check_new_fact("", fact));
  INFERSCALE_RETURN_IF_ERROR(check_time("ingest_time", item.fact.ingest_time, 0));
  return check_history(item);
}

bool same_version(const FactVersion& a, const FactVersion& b) {
  return a.version == b.version && a.text == b.text && same_metadata(a.metadata, b.metadata) &&
         a.event_time == b.event_time && a.event_offset_minutes == b.event_offset_minutes &&
         a.valid_from == b.valid_from && a.valid_to == b.valid_to;
}

bool same_live(const Fact& a, const Fact& b) {
  return a.version == b.version && a.text == b.text && same_metadata(a.metadata, b.metadata) &&
         a.event_time == b.event_time && a.event_offset_minutes == b.event_offset_minutes &&
         a.ingest_time == b.ingest_time && a.source_turns == b.source_turns;
}

/// The id that an exported id gets in a scope when other people have it already.
std::string renamed(const std::string& id, const Scope& scope) {
  HashMessage message;
  message.add_text("restored fact").add_hash(scope_hash(scope)).add_text(id);
  return "f_" + sha256_128(message.bytes()).to_hex();
}

/// Ok when it is the same in everything.
Status compare(Connection& connection, const FactRow& row, const RestoredFact& item) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<FactVersion> history,
                              load_history(connection, row.pk));
  const bool same = same_live(row.fact, item.fact) && history.size() == item.history.size() &&
                    std::equal(history.begin(), history.end(), item.history.begin(), same_version);
  return same ? Status()
              : conflict(fmt::format(
                    "fact {} is there with other content (version {}, here {}): delete one, or "
                    "import into another scope",
                    row.fact.id, row.fact.version, item.fact.version));
}

Status insert_history(Connection& connection, std::int64_t fact,
                      const std::vector<FactVersion>& history) {
  for (const FactVersion& version : history) {
    INFERSCALE_RETURN_IF_ERROR(connection.run(
        "INSERT INTO fact_history(fact, version, valid_from, valid_to, event_time, event_offset,"
        " text, metadata, checksum) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,"
        " inferscale_checksum(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8))",
        fact, std::int64_t{version.version}, version.valid_from, version.valid_to,
        version.event_time, std::int64_t{version.event_offset_minutes},
        std::string_view(version.text), std::string_view(version.metadata)));
  }
  return Status();
}

Status insert_fact(Connection& connection, KeywordTokenizer& tokenizer, const ScopeRow& scope,
                   const std::string& id, const Hash128& hash, const RestoredFact& item) {
  const Fact& fact = item.fact;
  INFERSCALE_RETURN_IF_ERROR(connection.run(
      "INSERT INTO facts(id, scope, version, content_hash, n_terms, ingest_time, event_time,"
      " event_offset, text, metadata, checksum) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10,"
      " inferscale_checksum(?1, ?2, ?3, ?6, ?7, ?8, ?9, ?10))",
      std::string_view(id), scope.pk, std::int64_t{fact.version}, hash,
      tokenizer.count_terms(fact.text), fact.ingest_time, fact.event_time,
      std::int64_t{fact.event_offset_minutes}, std::string_view(fact.text),
      std::string_view(fact.metadata)));
  FactRow row{connection.last_insert_rowid(), scope.pk, scope.owner, {}};
  row.fact.text = fact.text;
  INFERSCALE_RETURN_IF_ERROR(insert_sources(connection, row.pk, fact.source_turns));
  INFERSCALE_RETURN_IF_ERROR(insert_history(connection, row.pk, item.history));
  return index_keywords(connection, row);
}

/// Conflicts and refusals are the item's outcome; an error ends the batch.
Result<RestoreOutcome> restore_fact(Connection& connection, KeywordTokenizer& tokenizer,
                                    const RestoredFact& item) {
  RestoreOutcome outcome;
  outcome.id = item.fact.id;
  outcome.status = check_restored(item);
  if (!outcome.status.ok()) {
    return outcome;
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::optional<FactRow> row, find_fact(connection, outcome.id));
  if (row && row->fact.scope != item.fact.scope) {
    outcome.id = renamed(item.fact.id, item.fact.scope);
    INFERSCALE_ASSIGN_OR_RETURN(row, find_fact(connection, outcome.id));
  }
  if (row) {
    outcome.status = row->fact.scope == item.fact.scope
                         ? compare(connection, *row, item)
                         : conflict("fact " + item.fact.id + " is there in another scope");
    outcome.existed = outcome.status.ok();
    return outcome;
  }
  const Hash128 hash = content_hash(item.fact.text, item.fact.event_time);
  INFERSCALE_ASSIGN_OR_RETURN(const ScopeRow scope, ensure_scope(connection, item.fact.scope));
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> same,
                              find_duplicate(connection, scope.pk, hash));
  if (same) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::optional<FactRow> other, find_fact(connection, *same));
    const bool more = !item.history.empty() ||
                      (other && !same_metadata(other->fact.metadata, item.fact.metadata));
    outcome.status = more ? conflict(fmt::format("fact {} says exactly this already, with another "
                                                 "history or metadata",
                                                 *same))
                          : Status();
    outcome.existed = outcome.status.ok();
    outcome.id = *same;
    return outcome;
  }
  INFERSCALE_RETURN_IF_ERROR(insert_fact(connection, tokenizer, scope, outcome.id, hash, item));
  return outcome;
}

Result<RestoreOutcome> restore_turn(Connection& connection, const Turn& turn) {
  RestoreOutcome outcome;
  outcome.id = turn.id;
  outcome.status = check_turn("", turn);
  if (!outcome.status.ok()) {
    return outcome;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const ScopeRow scope, ensure_scope(connection, turn.scope));
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement row, connection.prepare("SELECT speaker, role, text, event_time, event_offset"
                                        " FROM turns WHERE scope = ?1 AND id = ?2"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found,
                              row.with(scope.pk, std::string_view(turn.id)).step());
  if (found) {
    outcome.existed = row.text(0) == turn.speaker && row.text(1) == turn.role &&
                      row.text(2) == turn.text && row.integer(3) == turn.event_time &&
                      row.integer(4) == turn.event_offset_minutes;
    outcome.status = outcome.existed
                         ? Status()
                         : conflict("turn " + turn.id +
                                    " is there with other content: import into another scope");
    return outcome;
  }
  INFERSCALE_RETURN_IF_ERROR(insert_turn(connection, scope.pk, turn));
  return outcome;
}

}  // namespace

Result<std::vector<RestoreOutcome>> SqliteCatalog::restore_turns(std::span<const Turn> turns,
                                                                 bool dry_run) {
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  std::vector<RestoreOutcome> outcomes;
  for (const Turn& turn : turns) {
    INFERSCALE_ASSIGN_OR_RETURN(RestoreOutcome outcome, restore_turn(write.connection, turn));
    outcomes.push_back(std::move(outcome));
  }
  if (!dry_run) {
    INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  }
  return outcomes;
}

Result<std::vector<RestoreOutcome>> SqliteCatalog::restore_facts(
    std::span<const RestoredFact> facts, bool dry_run) {
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  std::vector<RestoreOutcome> outcomes;
  for (const RestoredFact& fact : facts) {
    INFERSCALE_ASSIGN_OR_RETURN(RestoreOutcome outcome,
                                restore_fact(write.connection, write.tokenizer, fact));
    outcomes.push_back(std::move(outcome));
  }
  if (!dry_run) {
    INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  }
  return outcomes;
}

}  // namespace inferscale::sqlite
