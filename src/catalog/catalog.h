#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog_types.h"
#include "catalog/check_report.h"
#include "catalog/erase_request.h"
#include "catalog/filter.h"
#include "inferscale/kv_record.h"
#include "inferscale/status.h"
#include "inferscale/types.h"

namespace inferscale {

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
  /// The n turns of exactly this scope that were written before turn `turn_id`, oldest first; none
  /// when that turn is not there.
  [[nodiscard]] virtual Result<std::vector<Turn>> turns_before(const Scope& exact,
                                                               std::string_view turn_id,
                                                               std::size_t n) = 0;
  /// The `limit` names that stand as speaker of the most turns of exactly this scope (among equals,
  /// whoever spoke first), in the order in which they first spoke. Turns without one do not count.
  [[nodiscard]] virtual Result<std::vector<std::string>> speakers(const Scope& exact,
                                                                  std::size_t limit) = 0;
  /// The n facts of the fact's own scope, ingested before it, whose vectors are nearest to its own
  /// (by the largest product of two chunks; among equals, the older), in ingest order. Where
  /// several embedding models have left vectors, those count that were written last. Nothing when
  /// the fact has no vectors or this version is not live.
  [[nodiscard]] virtual Result<std::vector<Fact>> nearest_facts(const FactRef& fact,
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
  /// Keys of the entries without a fact of this scope (scope_hash) and context spelling: what facts
  /// of the scope share.
  [[nodiscard]] virtual Result<std::vector<RecordKey>> shared_records(
      const Hash128& scope, const Hash128& model_fingerprint, std::string_view context) = 0;
  /// Makes the entries of all facts outdated: usable until they are encoded again. Returns how many
  /// were not outdated already.
  [[nodiscard]] virtual Result<std::uint64_t> outdate_records(const Hash128& model_fingerprint) = 0;
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
  /// How often something of (tenant, user) was erased or a record of it was replaced: raised by one
  /// in the transaction of every erase, commit and repair that does so; 0 before the first. It
  /// outlives all else that is stored of them. Errors: kDataLoss (its row is damaged).
  [[nodiscard]] virtual Result<std::uint64_t> epoch(std::string_view tenant,
                                                    std::string_view user) = 0;
  /// Raises it by one; returns the new one.
  [[nodiscard]] virtual Result<std::uint64_t> raise_epoch(std::string_view tenant,
                                                          std::string_view user) = 0;
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
