#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "catalog/check_report.h"
#include "catalog/erase_request.h"
#include "catalog/filter.h"
#include "inferscale/kv_record.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

/// One raw conversation turn: the source that facts cite.
struct Turn {
  std::string id;  ///< unique within its scope
  Scope scope;
  std::string speaker;
  std::string role;  ///< "user", "assistant", "system", "tool"
  std::string text;
  TimestampUs event_time = 0;
  int event_offset_minutes = 0;
};

/// Vectors of one text: one row per chunk, [n_chunks][dim], each of norm 1.
struct TextVectors {
  std::string embedder_id;  ///< names model and dim, so that vectors of different models never mix
  std::size_t dim = 0;
  std::vector<float> values;
  [[nodiscard]] std::size_t chunks() const { return dim == 0 ? 0 : values.size() / dim; }
};

struct NewFact {
  Scope scope;
  std::string text;             ///< one line, valid UTF-8, at most kMaxFactBytes
  std::string metadata = "{}";  ///< a JSON object, at most kMaxMetadataBytes
  std::optional<TimestampUs> event_time;
  int event_offset_minutes = 0;
  std::vector<std::string> source_turns;  ///< turn ids in the same scope; need not exist
  TextVectors vectors;                    ///< empty when embedding failed or is deferred
};
inline constexpr std::size_t kMaxFactBytes = 1U << 20;
inline constexpr std::size_t kMaxMetadataBytes = 64U << 10;

/// The live version of a fact.
struct Fact {
  std::string id;  ///< opaque
  Scope scope;
  std::uint32_t version = 1;
  std::int64_t sequence = 0;  ///< ingest order over the whole catalog; kept by updates
  std::string text;
  std::string metadata = "{}";
  std::optional<TimestampUs> event_time;  ///< when it was true or said
  int event_offset_minutes = 0;
  TimestampUs ingest_time = 0;  ///< when this version was written
  std::vector<std::string> source_turns;
};

/// A row of a fact's history, oldest first.
struct FactVersion {
  std::uint32_t version = 1;
  std::string event;  ///< "ADD", "UPDATE"
  std::string text;
  std::string metadata = "{}";
  std::optional<TimestampUs> event_time;
  int event_offset_minutes = 0;
  TimestampUs valid_from = 0;
  std::optional<TimestampUs> valid_to;  ///< unset while live
};

struct AddOutcome {
  std::string id;
  bool existed = false;  ///< an exact duplicate (scope, text, event time) was already live: nothing
                         ///< was written
};

struct FactPatch {
  std::optional<std::string> text;
  std::optional<std::string> metadata;
  std::optional<TimestampUs> event_time;
  int event_offset_minutes = 0;
  std::optional<std::uint32_t> if_version;  ///< kConflict when the live version differs
  TextVectors vectors;  ///< of the new text; ignored when the text does not change
};

/// The record that stands for (fact version, model fingerprint). `context` is the configured
/// spelling of the encode context ("window:8"); context_id pins what was really seen.
struct RecordEntry {
  FactRef fact;  ///< empty id for header records
  Hash128 model_fingerprint;
  std::string context;
  RecordKey key;
  Hash128 context_id;
  Hash128 scope;  ///< scope_hash in the record
  std::uint32_t n_tokens = 0;
  std::vector<FactRef>
      attended_facts;  ///< as text or as KV: deleting one of them drops this record
  std::vector<std::string> attended_turns;
  /// Records whose KV was injected as context: what they saw, this record saw too.
  std::vector<RecordKey> attended_records;
};

/// Vectors of the live facts of a scope, for an in-memory index.
struct VectorRows {
  std::size_t dim = 0;
  std::vector<std::string> fact_ids;  ///< [rows]; a fact with several chunks has several rows
  std::vector<float> values;          ///< [rows][dim]
};

struct KeywordHit {
  std::string fact_id;
  double score = 0;  ///< BM25, larger is better
};

struct FactPage {
  std::vector<Fact> facts;  ///< in ingest order
  std::string next_cursor;  ///< empty at the end; opaque and stable under concurrent writes
};

/// Which facts `facts_to_encode` gives.
struct EncodeQuery {
  Hash128 model_fingerprint;
  std::string context;
  std::int64_t after_sequence = 0;
  /// Leaves out facts that failed and are not to be tried yet, or never; unset: leaves none out.
  std::optional<TimestampUs> due_at;
};

struct EncodePage {
  std::vector<Fact> facts;
  std::size_t without_record = 0;  ///< the first so many; the others' records are outdated
};

/// The last failure to encode a fact version under a model and context. Kept until it is encoded,
/// changed or erased.
struct EncodeFailure {
  FactRef fact;
  Hash128 model_fingerprint;
  std::string context;
  std::uint32_t attempts = 0;  ///< in a row
  TimestampUs last_try = 0;
  std::optional<TimestampUs> next_try;  ///< unset: given up
  std::string error;
};
/// A `next_try` further ahead than this was set by a clock that has been set back since: it is due.
inline constexpr TimestampUs kMaxEncodeRetryUs = TimestampUs{2} * 3600 * 1'000'000;

struct EncodeFailureCounts {
  std::uint64_t waiting = 0;
  std::uint64_t given_up = 0;
  std::optional<TimestampUs> next_try;  ///< the earliest
};

struct CatalogCounts {
  std::uint64_t facts = 0, turns = 0, versions = 0, vectors = 0, records = 0, scopes = 0;
};

/// A fact as it was in another catalog; `fact.sequence` is not used.
struct RestoredFact {
  Fact fact;
  std::vector<FactVersion> history;  ///< superseded versions, oldest first
};
struct RestoreOutcome {
  Status status;         ///< ok: it is there now
  std::string id;        ///< under which it is
  bool existed = false;  ///< nothing was written
};
/// What a scope holds, piece by piece; an error ends it.
struct CatalogVisitor {
  std::function<Status(std::uint64_t turns, std::uint64_t facts, std::uint64_t versions)> begin;
  std::function<Status(const Turn&)> turn;
  std::function<Status(const RestoredFact&)> fact;
};

struct RecordPage {
  struct Row {
    std::int64_t row = 0;
    bool stale = false;
    RecordEntry entry;  ///< without what it attended to
  };
  std::vector<Row> rows;
};

/// The truth about facts, turns, vectors, history and which record stands for which fact version.
/// Every write is one transaction and durable when the call returns. Thread-safe. Errors of every
/// call: kUnavailable (I/O, read-only), kResourceExhausted (disk full), kDataLoss (database
/// corrupt), besides those named.
class Catalog {
 public:
  virtual ~Catalog() = default;

  // --- writes ---
  /// One transaction for the whole batch. Errors: kInvalidArgument names the item and the field;
  /// nothing is written.
  [[nodiscard]] virtual Result<std::vector<AddOutcome>> add_facts(
      std::span<const NewFact> facts) = 0;
  /// Turns that exist already (scope, id) are left as they are; returns how many were new.
  [[nodiscard]] virtual Result<std::uint64_t> add_turns(std::span<const Turn> turns) = 0;
  /// Errors: kNotFound, kConflict (if_version), kInvalidArgument. An unchanged patch returns the
  /// live fact.
  [[nodiscard]] virtual Result<Fact> update_fact(const Scope& request, std::string_view id,
                                                 const FactPatch& patch) = 0;
  /// Erases facts with history, vectors, keywords, record entries (theirs and of everything that
  /// attended to them, transitively) and, unless they are kept, the source turns that no live fact
  /// cites any more. Nothing that matches is no error. Errors: kInvalidArgument, kNotFound names
  /// the first id that is not there (nothing is erased), kPermissionDenied (a shared fact).
  [[nodiscard]] virtual Result<EraseOutcome> erase(const EraseRequest& request) = 0;
  [[nodiscard]] Result<EraseOutcome> erase_facts(const Scope& request,
                                                 std::span<const std::string> ids,
                                                 bool keep_turns) {
    EraseRequest erase_request;
    erase_request.scope = request;
    erase_request.ids.assign(ids.begin(), ids.end());
    erase_request.keep_turns = keep_turns;
    return erase(erase_request);
  }
  /// Everything that `request` permits: all facts and all turns of the scope.
  [[nodiscard]] Result<EraseOutcome> erase_scope(const Scope& request) {
    EraseRequest erase_request;
    erase_request.scope = request;
    erase_request.whole_scope = true;
    return erase(erase_request);
  }
  /// Adds missing vectors; facts whose version is no longer live are skipped.
  [[nodiscard]] virtual Status put_vectors(const FactRef& fact, const TextVectors& vectors) = 0;

  // --- reads ---
  [[nodiscard]] virtual Result<Fact> get_fact(const Scope& request, std::string_view id) = 0;
  /// In the order of `ids`; ids that are gone are left out.
  [[nodiscard]] virtual Result<std::vector<Fact>> get_facts(const Scope& request,
                                                            std::span<const std::string> ids) = 0;
  [[nodiscard]] virtual Result<FactPage> list_facts(const Scope& request, const Filter& filter,
                                                    std::size_t limit, std::string_view cursor) = 0;
  [[nodiscard]] virtual Result<std::vector<FactVersion>> history(const Scope& request,
                                                                 std::string_view id) = 0;
  [[nodiscard]] virtual Result<std::vector<Turn>> get_turns(const Scope& request,
                                                            std::span<const std::string> ids) = 0;
  /// The n live facts of exactly this scope with the largest sequence below `before`, oldest first.
  [[nodiscard]] virtual Result<std::vector<Fact>> facts_before(const Scope& exact,
                                                               std::int64_t before,
                                                               std::size_t n) = 0;
  [[nodiscard]] virtual Result<VectorRows> vectors(const Scope& request,
                                                   std::string_view embedder_id) = 0;
  [[nodiscard]] virtual Result<std::vector<Fact>> facts_without_vectors(
      std::string_view embedder_id, std::size_t limit) = 0;
  /// BM25 over the facts' text. Any text is a valid query: it is data, never query syntax. Queries
  /// are cut to their first 64 distinct terms (a query is not content: nothing stored is lost).
  [[nodiscard]] virtual Result<std::vector<KeywordHit>> keyword_search(const Scope& request,
                                                                       std::string_view query,
                                                                       std::size_t limit) = 0;
  /// Ids of the permitted facts that match; used to mask a vector scan.
  [[nodiscard]] virtual Result<std::vector<std::string>> matching_ids(const Scope& request,
                                                                      const Filter& filter) = 0;
  [[nodiscard]] virtual Result<CatalogCounts> counts(const Scope& request) = 0;
  [[nodiscard]] virtual Result<CatalogCounts> counts_all() = 0;

  // --- records ---
  /// Commits an encode job: replaces the entry of (fact version, fingerprint) in a transaction that
  /// finds the fact's version and every attended fact version and turn still live. Errors:
  /// kConflict when one is not (nothing is written; encode again). Returns the key that was
  /// replaced, if another.
  [[nodiscard]] virtual Result<std::optional<RecordKey>> commit_record(
      const RecordEntry& entry) = 0;
  /// Header records: fact.id empty, found by key.
  [[nodiscard]] virtual Result<std::vector<std::optional<RecordEntry>>> records_of(
      std::span<const FactRef> facts, const Hash128& model_fingerprint) = 0;
  /// First live facts without a record entry of this fingerprint, then those whose entry is
  /// outdated; each in ingest order.
  [[nodiscard]] virtual Result<EncodePage> facts_to_encode(const EncodeQuery& query,
                                                           std::size_t limit) = 0;
  /// How many facts `facts_to_encode` would give without a limit and without `due_at`.
  [[nodiscard]] virtual Result<std::uint64_t> count_to_encode(const Hash128& model_fingerprint,
                                                              std::string_view context) = 0;
  /// Replaces what is known of this fact's failures under the same model and context. Ignored when
  /// the fact's version is no longer live.
  [[nodiscard]] virtual Status put_encode_failure(const EncodeFailure& failure) = 0;
  [[nodiscard]] virtual Result<std::optional<EncodeFailure>> encode_failure(
      const FactRef& fact, const Hash128& model_fingerprint, std::string_view context) = 0;
  /// The latest failures of live fact versions.
  [[nodiscard]] virtual Result<std::vector<EncodeFailure>> encode_failures(
      const Hash128& model_fingerprint, std::string_view context, std::size_t limit) = 0;
  [[nodiscard]] virtual Result<EncodeFailureCounts> count_encode_failures(
      const Hash128& model_fingerprint, std::string_view context) = 0;
  /// Keys of all record entries, header records included: what a store may hold.
  [[nodiscard]] virtual Result<std::vector<RecordKey>> all_record_keys() = 0;
  /// Record entries (any fact) that attended to this fact, directly or through another record.
  [[nodiscard]] virtual Result<std::vector<RecordEntry>> dependants_of(
      std::string_view fact_id) = 0;

  // --- moving a scope to another catalog ---
  /// Calls `visitor` with everything that `request` may change, as it is at one moment, in ingest
  /// order. Erases wait for the end. Errors: those of the visitor.
  [[nodiscard]] virtual Status export_scope(const Scope& request,
                                            const CatalogVisitor& visitor) = 0;
  /// One transaction for the batch, an outcome for each item. An item that is there already is left
  /// alone; kConflict when it is there with other content, kInvalidArgument when it would not be
  /// accepted. With `dry_run` nothing is written.
  [[nodiscard]] virtual Result<std::vector<RestoreOutcome>> restore_turns(
      std::span<const Turn> turns, bool dry_run) = 0;
  /// The same for facts; vectors are left to `put_vectors`. An id that another scope has is
  /// replaced by one made of it and the scope.
  [[nodiscard]] virtual Result<std::vector<RestoreOutcome>> restore_facts(
      std::span<const RestoredFact> facts, bool dry_run) = 0;

  // --- checking and repairing ---
  /// Looks for rows that contradict each other; changes nothing. `full` reads every page, fact and
  /// vector. Erases wait for it. Errors: kUnavailable when `go_on` ends it; a damage that keeps
  /// rows from being read is a problem of the report, not an error.
  [[nodiscard]] virtual Result<CatalogReport> check(bool full, const GoOn& go_on) = 0;
  /// Repairs what `check` finds and can be repaired without losing a fact. Idempotent. Errors as
  /// those of writes.
  [[nodiscard]] virtual Result<CatalogRepair> repair(const GoOn& go_on) = 0;
  /// Entries that are not retired, in the order of their rows, after row `after`.
  [[nodiscard]] virtual Result<RecordPage> record_page(std::int64_t after, std::size_t limit) = 0;
  /// Drops the entries under these keys and those of everything that was encoded behind their KV:
  /// their facts are encoded again. Returns the keys that must leave the KV store.
  [[nodiscard]] virtual Result<std::vector<RecordKey>> drop_records(
      std::span<const RecordKey> keys) = 0;

  // --- settings that belong to the data directory (calibration, chosen defaults) ---
  [[nodiscard]] virtual Result<std::optional<std::string>> get_setting(std::string_view name) = 0;
  [[nodiscard]] virtual Status put_setting(std::string_view name, std::string_view value) = 0;
};

}  // namespace inferscale
