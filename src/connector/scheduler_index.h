#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "connector/request_params.h"
#include "inferscale/kv_record.h"
#include "inferscale/status.h"
#include "inferscale/types.h"
#include "kv/bounded_key_set.h"

namespace inferscale {

/// What the scheduler's side of an engine knows of a record that lies with its ranks.
struct IndexedRecord {
  RecordKey key;
  Hash128 scope;  ///< scope_hash of the owner
  ContextKind context_kind = ContextKind::kHeader;
  std::vector<TokenId> tokens;
  std::optional<Hash128> context_id = {};  ///< ranks check it, where it is said
  friend bool operator==(const IndexedRecord&, const IndexedRecord&) = default;
};

/// A record and the tokens of the prompt that it serves: begin .. end - 1.
struct MatchedSegment {
  RecordKey key;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  Hash128 scope = {};  ///< these two: as IndexedRecord has them
  std::optional<Hash128> context_id = {};
};

/// Why a key of a request was not matched. Names appear in traces as `fallbacks[].reason`.
enum class MatchMiss : std::uint8_t {
  kRecordMissing,  ///< unknown, erased, or not ready on every rank ("record_missing")
  kWrongScope,     ///< belongs to a scope the request may not use ("wrong_scope")
  kWrongTokens,    ///< the prompt has other tokens where it would stand ("wrong_tokens")
  kWrongContext,   ///< a prefix record that is not the first ("wrong_context")
  kBehindGap,      ///< usable, but stands behind one that is not ("behind_gap")
};
inline constexpr std::size_t kMatchMisses = 5;
[[nodiscard]] const char* match_miss_name(MatchMiss miss);

struct MatchFallback {
  MatchMiss reason = MatchMiss::kRecordMissing;
  std::uint32_t count = 0;
};

/// The run of records that may be injected: segments follow each other without a gap from token
/// `begin` to `end`; both are 0 where there is none. Everything before `begin` must come from the
/// engine's own prefix cache. Segments and fallbacks together count every key of the request.
struct Match {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::vector<MatchedSegment> segments;
  std::vector<MatchFallback> fallbacks;  ///< each reason at most once, in the order of MatchMiss
};

/// Which records are ready on every rank, and which of them a prompt can use. Holds names, owners
/// and token ids, no KV: a match is a promise that the ranks' stores may still break. Thread-safe;
/// no call but the ones that say so changes what another one sees.
class SchedulerIndex {
 public:
  /// Errors: kInvalidArgument unless 1 .. 1024 ranks.
  [[nodiscard]] static Result<std::unique_ptr<SchedulerIndex>> create(std::uint32_t n_ranks);

  /// A rank says that it stores a record. False, and nothing is kept, when the key was erased and
  /// not expected since, or when ranks disagree on what lies under it (then it is usable nowhere).
  /// Errors: kInvalidArgument (rank; no tokens or over 1,048,576).
  [[nodiscard]] Result<bool> add(std::uint32_t rank, const IndexedRecord& record);
  /// A rank says that it has these no more. Errors: kInvalidArgument (rank).
  [[nodiscard]] Status drop(std::uint32_t rank, std::span<const RecordKey> keys);

  /// A capture of this record is going on: once more it may be added after an erase, and
  /// `erase_owner` finds it before any rank has added it. At most 65,536 are remembered.
  void expect(const RecordKey& key, const Hash128& scope);

  /// Forgets records, on all ranks and for good: what a rank says of them later is refused. Returns
  /// how many were known.
  std::size_t erase(std::span<const RecordKey> keys);
  /// The same of every record, stored or expected, whose owner is of this tenant and user; an empty
  /// user means what belongs to the tenant as a whole. Returns their keys.
  std::vector<RecordKey> erase_owner(std::string_view tenant, std::string_view user);

  /// From now on records whose scope hash is that of `scope` can be matched.
  void learn_scope(const Scope& scope);

  /// What of `params.inject` the prompt can use. A prefix record stands at token 0. A fact that
  /// comes first stands where the longest run of keys follows it, the first such place. A first key
  /// without a record is passed over: it may be a header that the engine's prefix cache still has.
  /// Changes nothing; takes time in proportion to the prompt and the records' tokens.
  [[nodiscard]] Match match(std::span<const TokenId> prompt, const RequestParams& params) const;

  /// Whether a record is ready on every rank.
  [[nodiscard]] bool contains(const RecordKey& key) const;
  /// Records that are ready on every rank.
  [[nodiscard]] std::size_t size() const;

 private:
  struct Entry {
    std::shared_ptr<const IndexedRecord> record;  // shared with matches that are going on
    std::vector<bool> has;                        // of each rank
    std::uint32_t count = 0;                      // of ranks that have it
  };
  struct Candidate {
    std::shared_ptr<const IndexedRecord> record;  // null: not usable, for this reason
    MatchMiss miss = MatchMiss::kRecordMissing;
  };

  explicit SchedulerIndex(std::uint32_t n_ranks);
  [[nodiscard]] std::vector<Candidate> candidates(const RequestParams& params) const;
  // These require mutex_.
  void remove(std::unordered_map<RecordKey, Entry>::iterator entry);
  void mark_erased(const RecordKey& key);
  [[nodiscard]] bool permits(const Scope& request, const Hash128& owner) const;

  const std::uint32_t n_ranks_;
  mutable std::mutex mutex_;
  std::unordered_map<RecordKey, Entry> entries_;
  std::size_t ready_ = 0;
  std::unordered_map<Hash128, Scope> scopes_;
  BoundedKeySet erased_;
  BoundedKeySet expected_;
  std::unordered_map<RecordKey, Hash128> expected_scopes_;
};

}  // namespace inferscale
