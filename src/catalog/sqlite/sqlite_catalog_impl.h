#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "base/file.h"
#include "catalog/catalog.h"
#include "catalog/sqlite/reader_pool.h"
#include "catalog/sqlite/scopes.h"
#include "catalog/sqlite/sqlite_catalog.h"

namespace inferscale::sqlite {

/// The catalog over one SQLite file: one writing session behind a mutex, a few reading ones beside
/// it. Its calls are spread over the files of this folder by concern.
class SqliteCatalog final : public Catalog {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Catalog>> open(const SqliteCatalogOptions& options);
  ~SqliteCatalog() override;

  // facts_write.cc
  Result<std::vector<AddOutcome>> add_facts(std::span<const NewFact> facts) override;
  Result<std::uint64_t> add_turns(std::span<const Turn> turns) override;
  Result<Fact> update_fact(const Scope& request, std::string_view id,
                           const FactPatch& patch) override;

  // erase.cc
  Result<EraseOutcome> erase(const EraseRequest& request) override;

  // vectors.cc
  Status put_vectors(const FactRef& fact, const TextVectors& vectors) override;
  Result<VectorRows> vectors(const Scope& request, std::string_view embedder_id) override;
  Result<std::vector<Fact>> facts_without_vectors(std::string_view embedder_id,
                                                  std::size_t limit) override;

  // facts_read.cc
  Result<Fact> get_fact(const Scope& request, std::string_view id) override;
  Result<std::vector<Fact>> get_facts(const Scope& request,
                                      std::span<const std::string> ids) override;
  Result<FactPage> list_facts(const Scope& request, const Filter& filter, std::size_t limit,
                              std::string_view cursor) override;
  Result<std::vector<FactVersion>> history(const Scope& request, std::string_view id) override;
  Result<std::vector<Turn>> get_turns(const Scope& request,
                                      std::span<const std::string> ids) override;
  Result<std::vector<std::string>> matching_ids(const Scope& request,
                                                const Filter& filter) override;
  Result<CatalogCounts> counts(const Scope& request) override;
  Result<CatalogCounts> counts_all() override;

  // context_reads.cc
  Result<std::vector<Fact>> facts_before(const Scope& exact, std::int64_t before,
                                         std::size_t n) override;
  Result<std::vector<Turn>> turns_before(const Scope& exact, std::string_view turn_id,
                                         std::size_t n) override;
  Result<std::vector<std::string>> speakers(const Scope& exact, std::size_t limit) override;
  Result<std::vector<Fact>> nearest_facts(const FactRef& fact, std::size_t n) override;

  // search.cc
  Result<std::vector<KeywordHit>> keyword_search(const Scope& request, std::string_view query,
                                                 std::size_t limit) override;

  // records.cc, records_read.cc
  Result<std::optional<RecordKey>> commit_record(const RecordEntry& entry) override;
  Result<std::vector<std::optional<RecordEntry>>> records_of(
      std::span<const FactRef> facts, const Hash128& model_fingerprint) override;
  Result<EncodePage> facts_to_encode(const EncodeQuery& query, std::size_t limit) override;
  Result<std::vector<RecordKey>> shared_records(const Hash128& scope,
                                                const Hash128& model_fingerprint,
                                                std::string_view context) override;
  Result<std::uint64_t> outdate_records(const Hash128& model_fingerprint) override;
  Result<std::uint64_t> count_to_encode(const Hash128& model_fingerprint,
                                        std::string_view context) override;
  Result<std::vector<RecordKey>> all_record_keys() override;
  Result<std::vector<RecordEntry>> dependants_of(std::string_view fact_id) override;

  // epochs.cc
  Result<std::uint64_t> epoch(std::string_view tenant, std::string_view user) override;
  Result<std::uint64_t> raise_epoch(std::string_view tenant, std::string_view user) override;

  // export.cc, restore.cc
  Status export_scope(const Scope& request, const CatalogVisitor& visitor) override;
  Result<std::vector<RestoreOutcome>> restore_turns(std::span<const Turn> turns,
                                                    bool dry_run) override;
  Result<std::vector<RestoreOutcome>> restore_facts(std::span<const RestoredFact> facts,
                                                    bool dry_run) override;

  // check.cc, repair.cc
  Result<CatalogReport> check(bool full, const GoOn& go_on) override;
  Result<CatalogRepair> repair(const GoOn& go_on) override;
  Result<RecordPage> record_page(std::int64_t after, std::size_t limit) override;
  Result<std::vector<RecordKey>> drop_records(std::span<const RecordKey> keys) override;

  // encode_failures.cc
  Status put_encode_failure(const EncodeFailure& failure) override;
  Result<std::optional<EncodeFailure>> encode_failure(const FactRef& fact,
                                                      const Hash128& model_fingerprint,
                                                      std::string_view context) override;
  Result<std::vector<EncodeFailure>> encode_failures(const Hash128& model_fingerprint,
                                                     std::string_view context,
                                                     std::size_t limit) override;
  Result<EncodeFailureCounts> count_encode_failures(const Hash128& model_fingerprint,
                                                    std::string_view context) override;

  // open.cc
  Result<std::optional<std::string>> get_setting(std::string_view name) override;
  Status put_setting(std::string_view name, std::string_view value) override;

 private:
  SqliteCatalog(std::filesystem::path file, FileLock lock)
      : file_(std::move(file)), lock_(std::move(lock)), readers_(file_) {}

  /// The writing session, its mutex held, inside a write transaction that rolls back unless
  /// committed. Members are destroyed in reverse: the transaction ends before the mutex is freed.
  struct Write {
    std::unique_lock<std::mutex> lock;
    Connection& connection;
    KeywordTokenizer& tokenizer;
    Transaction transaction;
  };
  [[nodiscard]] Result<Write> begin_write();

  [[nodiscard]] Status empty_log();
  /// kDataLoss when the keyword index does not say what the facts say.
  [[nodiscard]] Status check_keyword_index();
  [[nodiscard]] Status rebuild_indexes(CatalogRepair& repair);
  [[nodiscard]] Status rebuild_keywords(CatalogRepair& repair);
  [[nodiscard]] Result<EraseOutcome> finish_erase(Write& write, const EraseRequest& request);

  const std::filesystem::path file_;
  FileLock lock_;
  std::mutex write_mutex_;
  Session writer_;  // guarded by write_mutex_
  ReaderPool readers_;
};

}  // namespace inferscale::sqlite
