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
#include "connector/rank_transfer.h"
#include "connector/work_team.h"
#include "inferscale/kv_kernels.h"
#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "inferscale/model_spec.h"
#include "inferscale/status.h"
#include "kv/device_backend.h"
#include "kv/device_store.h"

namespace inferscale {

struct RankStoreOptions {
  /// Holds `kv/` and `kv.lock`; empty: records are kept in memory alone.
  std::filesystem::path directory;
  std::uint64_t host_budget_bytes = 1ULL << 30;
  std::uint64_t disk_budget_bytes = 8ULL << 30;
  ModelSpec spec;                 ///< of the whole model; a rank holds a shard of its heads
  KvCodec codec = KvCodec::kF16;  ///< of records captured from now on: see codec_for_context
  std::uint32_t shard_index = 0;
  std::uint32_t shard_count = 1;
  std::uint32_t max_positions = 0;  ///< the longest sequence that the engine serves
  unsigned threads = 1;             ///< for large loads; 1..16, with the caller's own
  /// Whose threads these are; null: the store makes them.
  ParallelRegion region = nullptr;
  std::uint32_t tokens_per_page = 4;  ///< of a device's tiers
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

/// What reading some records told.
struct CheckedRecords {
  std::vector<RecordKey> sound;
  std::vector<RecordKey> corrupt;  ///< damaged: dropped
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

  /// Verifies and leases what a request wants: in memory of the device's, where there is one.
  [[nodiscard]] PreparedLoad prepare(std::span<const LoadItem> items);

  /// Writes prepared records one after the other into the rows 0, 1, … of `cache`, keys rotated to
  /// where each record's tokens stand. Errors: kInvalidArgument (shape, or another number of rows
  /// than the loads have tokens; a load that is not ok, or is for a device): nothing is written.
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

  // With a device. A stream is the engine's own handle.

  /// Puts the tiers of a device, whose memory holds the engine's cache and is to hold records, in
  /// front of the store: budgets of its own memory, and of memory of the host that it reads. Until
  /// then records are composed from memory of the host. Once, while no other call is going on.
  /// Errors: those of `factory`; kInvalidArgument (a second device; budgets without room for a
  /// page): the store is as it was.
  [[nodiscard]] Status attach_device(const DeviceFactory& factory, int device_index,
                                     std::uint64_t gpu_budget_bytes,
                                     std::uint64_t pinned_budget_bytes);
  /// Bytes of a token's keys and values in the codec of new records; instead of kQ4 in that in
  /// which a device captures and holds them.
  [[nodiscard]] std::size_t token_bytes() const {
    return kv_token_bytes(shape_, PageLayout::codec_for(options_.codec));
  }
  /// How many tokens' records the larger of its tiers holds; 0 without a device.
  [[nodiscard]] std::size_t device_tokens() const;

  /// Says where the engine's cache is: memory of the device that outlives this store and all loads.
  /// `max_tokens` is what one compose may have, and a capture, unless `max_capture_tokens` says
  /// otherwise (captures need as much memory as they may have tokens, several times). Again:
  /// another cache from now on. Errors: kInvalidArgument (no device; shape, layout, max_tokens),
  /// kUnsupported (a layout that the kernels do not know), kResourceExhausted, kUnavailable.
  [[nodiscard]] Status bind_cache(const CacheLayout& cache, std::size_t max_tokens,
                                  std::size_t max_capture_tokens = 0);

  /// As `compose`, into the bound cache: rows[i] is the row of token i of all loads one after the
  /// other. One piece of work for all, put into `stream`; waits for nothing. The loads may be
  /// released when it returns: their pages stay until the stream has read them. Errors:
  /// kInvalidArgument: nothing was put into the stream; kUnavailable (the device failed: the rows
  /// may hold anything).
  [[nodiscard]] Status compose_paged(std::span<const PreparedLoad* const> loads,
                                     std::span<const std::uint32_t> rows, void* stream);

  /// Reads runs of tokens out of the bound cache: rows[i] is the row of token i of all items one
  /// after the other. Put into `stream`, which may change the rows later; waits for nothing.
  /// Errors: kInvalidArgument, kResourceExhausted (too many are pending), kUnavailable.
  [[nodiscard]] Result<PendingCapture> capture_paged(std::vector<CaptureItem> items,
                                                     std::span<const std::uint32_t> rows,
                                                     void* stream);

  // After PendingCapture::wait.
  /// An item's keys of the first layer as its record has them, but for the rounding to kQ4,
  /// [tokens][heads][head_dim], without positions. Errors: kInvalidArgument (no such item; its
  /// tokens or meta; rows that a scaled codec cannot hold).
  [[nodiscard]] Result<std::vector<float>> first_layer_keys(PendingCapture& pending,
                                                            std::size_t item) const;
  /// Stores an item as a record. Errors: as `capture`.
  [[nodiscard]] Status store(PendingCapture& pending, std::size_t item);

  [[nodiscard]] bool contains(const RecordKey& key) const;
  /// As KvStore's. kUnavailable also when closed.
  [[nodiscard]] Result<EraseCounts> erase(std::span<const RecordKey> keys);
  [[nodiscard]] Result<EraseCounts> erase_scope(const Hash128& scope);
  [[nodiscard]] Result<StoreVerdict> verify();
  /// The same of some records, in their order: which of them are of this model and shard and sound,
  /// every copy of them; what is not named was not there, or could not be read.
  [[nodiscard]] Result<CheckedRecords> check(std::span<const RecordKey> keys);
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
  struct Bound;  // a cache and the kernels that work on it

  RankStore(RankStoreOptions options, const KvShape& shape, std::shared_ptr<const RopeTable> rope,
            std::shared_ptr<Files> files);
  [[nodiscard]] Result<std::shared_ptr<Files>> files() const;
  [[nodiscard]] Result<RecordBuilder*> build(PendingCapture& pending, std::size_t item) const;
  [[nodiscard]] static Status read_parts(std::span<const LoadItem> items, bool on_device,
                                         PreparedLoad* load);
  [[nodiscard]] bool is_own(const RecordMeta& meta) const;
  void check_lease(const LoadItem& item, const RecordMeta* meta, MissReason reason,
                   PreparedLoad* load) const;
  [[nodiscard]] std::vector<RecordRequest> requests_of(std::span<const LoadItem> items) const;
  [[nodiscard]] RecordMeta meta_of(const CaptureMeta& meta) const;
  [[nodiscard]] PageLayout pages() const {
    return {shape_, PageLayout::codec_for(options_.codec), options_.tokens_per_page};
  }
  /// Stores what was captured as a record in `codec`.
  [[nodiscard]] static Status keep(Files& files, const RecordKey& key, RecordBuilder builder,
                                   KvCodec codec);
  [[nodiscard]] Result<std::shared_ptr<Bound>> bound() const;
  [[nodiscard]] std::vector<Lease> acquire_records(KvStore& store, std::span<const LoadItem> items,
                                                   std::span<const RecordRequest> requests) const;
  [[nodiscard]] Status store_rows(const CaptureMeta& meta, std::span<const TokenId> tokens,
                                  std::uint32_t first_position, const ConstCacheLayout& cache,
                                  std::span<const std::uint32_t> rows);
  [[nodiscard]] static Status check_for_host(const PreparedLoad& load);
  [[nodiscard]] Status check_shape(const KvShape& shape) const;
  [[nodiscard]] Status check_rows(std::size_t n_rows, std::size_t n_tokens) const;
  [[nodiscard]] Status add_items(const Placement& placement, std::vector<ComposeItem>* items) const;
  [[nodiscard]] Status compose_items(std::span<const ComposeItem> items,
                                     const CacheLayout& cache) const;
  [[nodiscard]] static std::vector<RecordKey> sorted_keys(const KvStore& store);
  [[nodiscard]] Result<StoreVerdict> read_each(
      KvStore& store, std::span<const RecordKey> keys,
      const std::function<Result<std::shared_ptr<const Record>>(KvStore&, const RecordKey&)>& read,
      const std::function<void(const RecordKey&, const Record&)>& keep);

  const RankStoreOptions options_;
  const KvShape shape_;
  const std::shared_ptr<const RopeTable> rope_;
  mutable WorkTeam team_;
  mutable std::mutex mutex_;  // of files_, bound_ and unreadable_
  std::shared_ptr<Files> files_;
  std::shared_ptr<Bound> bound_;
  std::uint64_t unreadable_ = 0;
};

}  // namespace inferscale
