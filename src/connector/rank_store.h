#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/file.h"
#include "connector/work_team.h"
#include "inferscale/kv_kernels.h"
#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "inferscale/model_spec.h"
#include "inferscale/status.h"

namespace inferscale {

struct RankStoreOptions {
  /// Holds `kv/` and `kv.lock`; empty: records are kept in memory alone.
  std::filesystem::path directory;
  std::uint64_t host_budget_bytes = 1ULL << 30;
  std::uint64_t disk_budget_bytes = 8ULL << 30;
  ModelSpec spec;                 ///< of the whole model; a rank holds a shard of its heads
  KvCodec codec = KvCodec::kF16;  ///< of records that are captured from now on
  std::uint32_t shard_index = 0;
  std::uint32_t shard_count = 1;
  std::uint32_t max_positions = 0;  ///< the longest sequence that the engine serves
  unsigned threads = 1;             ///< for large loads; 1..16, with the caller's own
};

/// A record that a request wants, and where its first token stands.
struct LoadItem {
  RecordKey key;
  Hash128 scope;  ///< scope_hash of the record's owner, which the caller may use
  std::optional<Hash128> context_id;  ///< none: the caller has checked that its kind is allowed
  std::vector<TokenId> tokens;
  std::uint32_t first_position = 0;
};

/// The records of one request, all verified and leased: none can be evicted while this lives.
/// Movable; may outlive the store.
class PreparedLoad {
 public:
  /// Why there is a record that cannot be used; kOk when there is none. Codes: kNotFound (absent,
  /// evicted, erased), kDataLoss (damaged; dropped), kInvalidArgument (other tokens, context, model
  /// or shard; positions beyond the engine's), kPermissionDenied (another scope),
  /// kResourceExhausted (the host budget is full of leased records).
  [[nodiscard]] const Status& status() const { return status_; }
  /// The key that `status` speaks of. REQUIRES: !status().ok().
  [[nodiscard]] const RecordKey& failed_key() const { return failed_key_; }
  /// Rows that it fills: the tokens of all its records. 0 unless status().ok().
  [[nodiscard]] std::size_t tokens() const { return tokens_; }

 private:
  friend class RankStore;
  Status status_;
  RecordKey failed_key_;
  std::size_t tokens_ = 0;
  std::vector<Lease> leases_;
  std::vector<std::uint32_t> first_positions_;
};

/// Tokens of a request that go into an engine's cache: those that stand at the positions begin,
/// begin + 1, …, one for each of `rows`, in which they go.
struct Placement {
  const PreparedLoad* load = nullptr;
  std::uint32_t begin = 0;
  std::span<const std::uint32_t> rows = {};
};

/// What a captured record says about itself, besides what the store knows.
struct CaptureMeta {
  RecordKey key;
  Hash128 scope;
  Hash128 context_id;
  ContextKind context_kind = ContextKind::kHeader;
  std::uint32_t context_tokens = 0;
};

/// A record as the scheduler's side needs to know it.
struct StoredRecord {
  RecordKey key;
  RecordMeta meta;
  std::vector<TokenId> tokens;
};

/// What reading every record told.
struct StoreVerdict {
  std::uint64_t records = 0;       ///< that were read and are sound
  std::vector<RecordKey> corrupt;  ///< damaged: dropped
  std::uint64_t foreign = 0;       ///< sound, but of another model or shard: never served
};

/// The records of one rank of an engine: a KvStore with the model's rope table, and every check
/// between an engine's cache and the records. Thread-safe.
class RankStore {
 public:
  /// Errors: kInvalidArgument (options), kConflict (another process has the directory),
  /// kUnavailable, kResourceExhausted (memory).
  [[nodiscard]] static Result<std::unique_ptr<RankStore>> open(RankStoreOptions options);

  /// Every record of this model and shard, in the order of their keys. Reads headers and token ids;
  /// keys and values are verified when they are first used. What is damaged in what it reads is
  /// dropped and counted (`unreadable`). Errors: kUnavailable (closed).
  [[nodiscard]] Result<std::vector<StoredRecord>> records();
  /// Records that `records` or `verify` could not read since the store was opened.
  [[nodiscard]] std::uint64_t unreadable() const;

  /// Verifies and leases what a request wants.
  [[nodiscard]] PreparedLoad prepare(std::span<const LoadItem> items);

  /// Writes prepared records one after the other into the rows 0, 1, … of `cache`, keys rotated to
  /// where each record's tokens stand. Errors: kInvalidArgument (shape, or another number of rows
  /// than the loads have tokens; a load that is not ok): nothing is written.
  [[nodiscard]] Status compose(std::span<const PreparedLoad* const> loads,
                               const CacheLayout& cache) const;

  /// Writes tokens of prepared records into rows of an engine's cache, keys rotated to where they
  /// stand. Errors: kInvalidArgument (shape, rows; a position that no record of the load has, or
  /// records that do not follow one another; a load that is not ok): nothing is written.
  [[nodiscard]] Status place(std::span<const Placement> placements, const CacheLayout& cache) const;

  /// Reads the rows 0, 1, … of `cache`, which hold `tokens` at first_position and on, takes the
  /// position out of the keys and stores the record. Errors: kInvalidArgument (shape, rows,
  /// positions, meta), kResourceExhausted (no tier has room), kUnavailable (closed).
  [[nodiscard]] Status capture(const CaptureMeta& meta, std::span<const TokenId> tokens,
                               std::uint32_t first_position, const ConstCacheLayout& cache);
  /// The same from a cache of any size, of whose rows `rows` holds one of each token.
  [[nodiscard]] Status capture_rows(const CaptureMeta& meta, std::span<const TokenId> tokens,
                                    std::uint32_t first_position, const ConstCacheLayout& cache,
                                    std::span<const std::uint32_t> rows);

  [[nodiscard]] bool contains(const RecordKey& key) const;
  /// As KvStore's. kUnavailable also when closed.
  [[nodiscard]] Result<EraseCounts> erase(std::span<const RecordKey> keys);
  [[nodiscard]] Result<EraseCounts> erase_scope(const Hash128& scope);
  [[nodiscard]] Result<StoreVerdict> verify();
  [[nodiscard]] Result<KvStoreStats> stats() const;
  [[nodiscard]] Status flush();

  /// Closes the files once calls that are going on have ended; later ones fail with kUnavailable.
  /// Leases stay usable.
  void close();

  /// What this rank holds of the model: its share of the heads, or one that several ranks hold
  /// where there are more ranks than heads.
  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] const RopeTable& rope() const { return *rope_; }

 private:
  /// Of records; for fewer, waking threads takes longer than they save.
  static constexpr std::uint64_t kTeamBytes = 1U << 20;

  struct Files;  // the store and the lock on its directory, in the order in which they end

  RankStore(RankStoreOptions options, const KvShape& shape, std::shared_ptr<const RopeTable> rope,
            std::shared_ptr<Files> files);
  [[nodiscard]] Result<std::shared_ptr<Files>> files() const;
  [[nodiscard]] bool is_own(const RecordMeta& meta) const;
  void check_lease(const LoadItem& item, const Lease& lease, PreparedLoad* load) const;
  [[nodiscard]] PreparedLoad finish(std::span<const LoadItem> items,
                                    std::vector<Lease> leases) const;
  [[nodiscard]] Status store_rows(const CaptureMeta& meta, std::span<const TokenId> tokens,
                                  std::uint32_t first_position, const ConstCacheLayout& cache,
                                  std::span<const std::uint32_t> rows);
  [[nodiscard]] Status check_shape(const KvShape& shape) const;
  [[nodiscard]] Status check_rows(std::size_t n_rows, std::size_t n_tokens) const;
  [[nodiscard]] Status add_items(const Placement& placement, std::vector<ComposeItem>* items) const;
  [[nodiscard]] Status compose_items(std::span<const ComposeItem> items,
                                     const CacheLayout& cache) const;
  Result<StoreVerdict> read_all(
      const std::function<Result<std::shared_ptr<const Record>>(KvStore&, const RecordKey&)>& read,
      const std::function<void(const RecordKey&, const Record&)>& keep);

  const RankStoreOptions options_;
  const KvShape shape_;
  const std::shared_ptr<const RopeTable> rope_;
  mutable WorkTeam team_;
  mutable std::mutex mutex_;  // of files_ and unreadable_
  std::shared_ptr<Files> files_;
  std::uint64_t unreadable_ = 0;
};

}  // namespace inferscale
