#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "kv/page_memory.h"
#include "kv/record_format.h"

namespace inferscale {

class PageTier;

/// One record in the pages of a tier. What stands first never changes while a lease is out; the
/// rest is the tier's.
struct PagedRecord {
  RecordKey key;
  RecordMeta meta;
  std::vector<TokenId> token_ids;
  /// Where the device finds its pages, in order.
  std::vector<const std::byte*> addresses;

  /// Work of a stream that reads the pages.
  struct Use {
    void* stream = nullptr;
    DeviceTicket ticket = 0;
  };
  std::vector<std::uint32_t> pages;
  std::array<std::byte, record_format::kHeaderBytes> header = {};  ///< with the checksums
  std::uint64_t leases = 0;
  std::uint64_t hits = 0;  ///< leases that were given since it came here
  std::vector<Use> uses;   ///< that may not have passed, at most one of each stream
  bool doomed = false;     ///< erased or replaced: never leased again, zeroed when nobody uses it
};

/// Keeps a record's pages from being used for anything else. What a device still reads when a lease
/// is released must have been reported with PageTier::note_use before. Movable, releases on
/// destruction. Not thread-safe itself; different leases may be used from different threads. May
/// outlive whoever gave it.
class PageLease {
 public:
  PageLease() = default;
  explicit PageLease(MissReason reason) : reason_(reason) {}
  PageLease(std::shared_ptr<PageTier> tier, std::shared_ptr<PagedRecord> record)
      : tier_(std::move(tier)), record_(std::move(record)), hits_(record_->hits) {}
  PageLease(PageLease&& other) noexcept
      : tier_(std::move(other.tier_)),
        record_(std::exchange(other.record_, nullptr)),
        reason_(other.reason_),
        hits_(other.hits_) {}
  PageLease& operator=(PageLease&& other) noexcept {
    if (this != &other) {
      release();
      tier_ = std::move(other.tier_);
      record_ = std::exchange(other.record_, nullptr);
      reason_ = other.reason_;
      hits_ = other.hits_;
    }
    return *this;
  }
  PageLease(const PageLease&) = delete;
  PageLease& operator=(const PageLease&) = delete;
  ~PageLease() { release(); }

  [[nodiscard]] bool ready() const { return record_ != nullptr; }
  [[nodiscard]] MissReason reason() const { return reason_; }
  /// REQUIRES of what follows: ready().
  [[nodiscard]] const RecordMeta& meta() const { return record_->meta; }
  [[nodiscard]] std::span<const TokenId> token_ids() const { return record_->token_ids; }
  [[nodiscard]] std::uint32_t n_tokens() const {
    return static_cast<std::uint32_t>(record_->token_ids.size());
  }
  [[nodiscard]] std::span<const std::byte* const> addresses() const { return record_->addresses; }
  [[nodiscard]] const RecordKey& key() const { return record_->key; }
  [[nodiscard]] const PageTier* tier() const { return tier_.get(); }
  /// How many leases the record had been given there, this one included.
  [[nodiscard]] std::uint64_t hits() const { return hits_; }

 private:
  friend class PageTier;
  void release();

  std::shared_ptr<PageTier> tier_;
  std::shared_ptr<PagedRecord> record_;
  MissReason reason_ = MissReason::kNone;
  std::uint64_t hits_ = 0;
};

}  // namespace inferscale
