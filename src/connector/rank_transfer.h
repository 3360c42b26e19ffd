#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "inferscale/status.h"
#include "inferscale/types.h"
#include "kernels/paged_kernels.h"
#include "kv/page_lease.h"

/// What goes between an engine's cache and a RankStore, either way.
namespace inferscale {

/// A record that a request wants, and where its first token stands.
struct LoadItem {
  RecordKey key;
  Hash128 scope;  ///< scope_hash of the record's owner, which the caller may use
  std::optional<Hash128> context_id;  ///< none: the caller has checked that its kind is allowed
  std::vector<TokenId> tokens;
  std::uint32_t first_position = 0;
  /// Which of its tokens are placed, on a device: n_tokens from first_token on, as many as there
  /// are. Elsewhere it is always all of them.
  std::uint32_t first_token = 0;
  std::uint32_t n_tokens = 0xFFFFFFFF;
};

/// The records of one request, all verified and leased: none can be evicted while this lives.
/// Movable; may outlive the store.
class PreparedLoad {
 public:
  PreparedLoad() = default;
  PreparedLoad(PreparedLoad&&) noexcept = default;
  PreparedLoad& operator=(PreparedLoad&&) noexcept = default;

  /// Why there is a record that cannot be used; kOk when there is none. Codes: kNotFound (absent,
  /// evicted, erased), kDataLoss (damaged; dropped), kInvalidArgument (other tokens, context, model
  /// or shard; positions beyond the engine's), kPermissionDenied (another scope),
  /// kResourceExhausted (the host budget is full of leased records).
  [[nodiscard]] const Status& status() const { return status_; }
  /// The key that `status` speaks of. REQUIRES: !status().ok().
  [[nodiscard]] const RecordKey& failed_key() const { return failed_key_; }
  /// Rows that it fills: the tokens of all its records that are placed. 0 unless status().ok().
  [[nodiscard]] std::size_t tokens() const { return tokens_; }

 private:
  friend class RankStore;
  Status status_;
  RecordKey failed_key_;
  std::size_t tokens_ = 0;
  std::vector<Lease> leases_;     // without a device
  std::vector<PageLease> pages_;  // with one
  struct Part {
    std::uint32_t first_position = 0;  // of the record's first token
    std::uint32_t first_token = 0;
    std::uint32_t n_tokens = 0;
  };
  std::vector<Part> parts_;
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

/// A run of tokens in the engine's cache that is to become a record.
struct CaptureItem {
  CaptureMeta meta;
  std::vector<TokenId> tokens;
  std::uint32_t first_position = 0;
};

/// Records that a device is reading from the engine's cache. Movable; one thread at a time.
class PendingCapture {
 public:
  PendingCapture() = default;
  PendingCapture(PendingCapture&&) noexcept = default;
  PendingCapture& operator=(PendingCapture&&) noexcept = default;

  /// Returns when the device has read them. Errors: kUnavailable (it failed).
  [[nodiscard]] Status wait() { return batch_ == nullptr ? Status() : batch_->wait(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }

 private:
  friend class RankStore;
  std::unique_ptr<CaptureBatch> batch_;
  std::vector<CaptureItem> items_;
  std::optional<RecordBuilder> built_;  // of item number built_item_, which was looked at last
  std::size_t built_item_ = 0;
};

}  // namespace inferscale
