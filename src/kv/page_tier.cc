#include "kv/page_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/record_check.h"

namespace inferscale {

void PageLease::release() {
  if (record_ != nullptr) {
    tier_->release(std::exchange(record_, nullptr));
  }
  tier_.reset();
}

std::shared_ptr<PageTier> PageTier::create(std::shared_ptr<PageMemory> memory,
                                           std::shared_ptr<DeviceClock> clock) {
  return std::shared_ptr<PageTier>(new PageTier(std::move(memory), std::move(clock)));
}

PageTier::PageTier(std::shared_ptr<PageMemory> memory, std::shared_ptr<DeviceClock> clock)
    : memory_(std::move(memory)),
      clock_(std::move(clock)),
      index_(memory_->n_pages() * memory_->layout().page_bytes() / 5 * 4) {
  free_.reserve(memory_->n_pages());
  for (std::size_t page = memory_->n_pages(); page > 0; --page) {
    free_.push_back(static_cast<std::uint32_t>(page - 1));
  }
}

PageTier::~PageTier() {
  const auto wait = [this](const RecordPtr& record) {
    for (const PagedRecord::Use& use : record->uses) {
      (void)clock_->wait(use.ticket);  // an error says that the device reads nothing any more
    }
  };
  index_.in_eviction_order([&](const auto& entry) {
    wait(entry.value);
    return true;
  });
  std::for_each(doomed_.begin(), doomed_.end(), wait);
}

PageLease PageTier::acquire(const RecordRequest& request) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) {
    return PageLease(MissReason::kDeviceFailed);
  }
  const auto* entry = index_.find(request.key);
  if (entry == nullptr) {
    return PageLease(MissReason::kAbsent);
  }
  const RecordPtr record = entry->value;
  const MissReason reason = mismatch(request, record->meta, record->token_ids);
  if (reason != MissReason::kNone) {
    return PageLease(reason);
  }
  (void)index_.use(request.key);
  ++record->leases;
  ++record->hits;
  ++leases_active_;
  ++hits_;
  return PageLease(shared_from_this(), record);
}

void PageTier::release(const RecordPtr& record) {
  bool due = false;
  {
    const std::lock_guard lock(mutex_);
    --leases_active_;
    due = --record->leases == 0 && record->doomed;
  }
  if (due) {
    const std::lock_guard writing(write_mutex_);
    reap();
  }
}

bool PageTier::idle(PagedRecord& record) const {
  std::erase_if(record.uses,
                [&](const PagedRecord::Use& use) { return clock_->passed(use.ticket); });
  return record.leases == 0 && record.uses.empty();
}

void PageTier::doom(const RecordKey& key, RecordPtr record) {
  (void)index_.remove(key);
  live_pages_ -= record->pages.size();
  record->doomed = true;
  doomed_.push_back(std::move(record));
  ++doomed_count_;
}

// Pages of what gives way are taken before free ones: a write overwrites them, so that they need
// not be zeroed.
Status PageTier::take(const RecordKey& key, std::size_t need, Room room, Taken* taken,
                      std::vector<RecordKey>* evicted) {
  std::vector<RecordPtr> gone;
  std::size_t available = free_.size();
  if (const auto* old = index_.find(key); old != nullptr) {
    const RecordPtr record = old->value;
    if (idle(*record)) {
      (void)index_.remove(key);
      live_pages_ -= record->pages.size();
      available += record->pages.size();
      gone.push_back(record);
    } else {
      doom(key, record);
    }
  }
  std::vector<RecordPtr> victims;
  if (available < need && room == Room::kEvict && need <= memory_->n_pages()) {
    index_.in_eviction_order([&](const auto& entry) {
      if (idle(*entry.value)) {
        available += entry.value->pages.size();
        victims.push_back(entry.value);
      }
      return available < need;
    });
  }
  const bool enough = available >= need;
  for (const RecordPtr& victim : victims) {
    if (enough) {
      (void)index_.evict(victim->key);
      live_pages_ -= victim->pages.size();
      evicted->push_back(victim->key);
      ++evictions_;
      gone.push_back(victim);
    }
  }
  for (const RecordPtr& record : gone) {
    for (const std::uint32_t page : record->pages) {
      if (enough && taken->pages.size() < need) {
        taken->pages.push_back(page);
      } else {
        taken->left.push_back({page, record->key});
      }
    }
  }
  if (!enough) {
    return resource_exhausted(
        fmt::format("{} tier: {} pages of {} bytes are needed, {} of {} are free or can be", name(),
                    need, layout().page_bytes(), available, memory_->n_pages()));
  }
  while (taken->pages.size() < need) {
    taken->pages.push_back(free_.back());
    free_.pop_back();
  }
  return Status();
}

Status PageTier::store(RecordPtr record, Room room, const Fill& fill,
                       std::vector<RecordKey>* evicted) {
  const std::lock_guard writing(write_mutex_);
  reap();
  const std::size_t need = layout().pages_for(static_cast<std::uint32_t>(record->token_ids.size()));
  Taken taken;
  Status status;
  {
    const std::lock_guard lock(mutex_);
    INFERSCALE_RETURN_IF_ERROR(failed());
    status = take(record->key, need, room, &taken, evicted);
  }
  const bool has_room = status.ok();
  if (has_room) {
    status = fill(taken.pages);
  }
  if (!status.ok()) {
    for (const std::uint32_t page : taken.pages) {
      taken.left.push_back({page, record->key});
    }
  }
  (void)clean(taken.left);  // what cannot be zeroed is not used, which is all that is needed here
  const std::lock_guard lock(mutex_);
  if (!status.ok()) {
    const bool refused = status.code() == StatusCode::kResourceExhausted ||
                         status.code() == StatusCode::kInvalidArgument;
    degraded_ = refused ? degraded_ : status.message();
    return has_room ? status.with_context(std::string(name()) + " tier") : status;
  }
  degraded_.clear();
  for (const std::uint32_t page : taken.pages) {
    record->addresses.push_back(memory_->page(page));
  }
  record->pages = std::move(taken.pages);
  live_pages_ += record->pages.size();
  const std::uint64_t bytes = record->pages.size() * layout().page_bytes();
  const double cost =
      recompute_tokens(record->meta, static_cast<std::uint32_t>(record->token_ids.size()));
  const RecordKey key = record->key;
  index_.insert({key, bytes, cost, record});
  if (!broken_.empty()) {  // since the pages were taken
    doom(key, std::move(record));
    return failed();
  }
  return Status();
}

Status PageTier::put(const RecordKey& key, const Record& record, Room room,
                     std::vector<RecordKey>* evicted) {
  INFERSCALE_RETURN_IF_ERROR(check_paged_record(layout(), record));
  auto paged = std::make_shared<PagedRecord>();
  paged->key = key;
  paged->meta = record.meta();
  paged->token_ids.assign(record.token_ids().begin(), record.token_ids().end());
  std::copy_n(record.bytes().begin(), paged->header.size(), paged->header.begin());
  const Fill fill = [&](std::span<const std::uint32_t> pages) {
    return memory_->write(pages, record);
  };
  return store(std::move(paged), room, fill, evicted);
}

Status PageTier::put_copy(const PageLease& source, Room room, std::vector<RecordKey>* evicted) {
  if (!(source.tier()->layout() == layout())) {
    return invalid_argument("pages of another layout");
  }
  auto paged = std::make_shared<PagedRecord>();
  paged->key = source.record_->key;
  paged->meta = source.record_->meta;
  paged->token_ids = source.record_->token_ids;
  paged->header = source.record_->header;
  const Fill fill = [&](std::span<const std::uint32_t> pages) {
    INFERSCALE_ASSIGN_OR_RETURN(const DeviceTicket ticket,
                                memory_->copy(pages, source.addresses()));
    const PageLease* const from[] = {&source};
    source.tier_->note_use(from, memory_.get(), ticket);  // stands for the memory's own stream
    return Status();
  };
  return store(std::move(paged), room, fill, evicted);
}

bool PageTier::contains(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  return index_.find(key) != nullptr;
}

void PageTier::touch(const RecordKey& key) {
  const std::lock_guard lock(mutex_);
  (void)index_.use(key);
}

void PageTier::discard(const RecordKey& key) {
  const std::lock_guard writing(write_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (const auto* entry = index_.find(key); entry != nullptr) {
      doom(key, entry->value);
    }
  }
  reap();
}

std::vector<RecordKey> PageTier::keys(std::optional<Hash128> scope) const {
  const std::lock_guard lock(mutex_);
  std::vector<RecordKey> keys;
  index_.in_eviction_order([&](const auto& entry) {
    if (!scope || entry.value->meta.scope == *scope) {
      keys.push_back(entry.key);
    }
    return true;
  });
  for (const Dirty& dirty : spoiled_) {  // of any scope: whose it was cannot matter any more
    if (std::find(keys.begin(), keys.end(), dirty.key) == keys.end()) {
      keys.push_back(dirty.key);
    }
  }
  return keys;
}

TierStats PageTier::stats() const {
  const std::lock_guard lock(mutex_);
  TierStats stats;
  stats.name = name();
  stats.records = index_.size();
  stats.bytes = index_.bytes();
  stats.budget_bytes = memory_->n_pages() * layout().page_bytes();
  stats.hits = hits_;
  stats.evictions = evictions_;
  stats.corrupt = corrupt_;
  stats.dead_bytes = (memory_->n_pages() - free_.size() - live_pages_) * layout().page_bytes();
  stats.degraded = broken_.empty() ? degraded_ : broken_;
  return stats;
}

std::uint64_t PageTier::leases_active() const {
  const std::lock_guard lock(mutex_);
  return leases_active_;
}

Status PageTier::publish(void* stream) {
  const Status status = memory_->publish(stream);
  if (!status.ok()) {
    fail(status);
  }
  return status;
}

Status PageTier::settle() {
  const Status status = memory_->settle();
  if (!status.ok()) {
    fail(status);
  }
  return status;
}

void PageTier::note_use(std::span<const PageLease* const> leases, void* stream,
                        DeviceTicket ticket) {
  if (ticket == 0) {
    return;
  }
  const std::lock_guard lock(mutex_);
  for (const PageLease* lease : leases) {
    if (lease->tier() != this || !lease->ready()) {
      continue;
    }
    std::vector<PagedRecord::Use>& uses = lease->record_->uses;
    const auto same = std::find_if(uses.begin(), uses.end(),
                                   [&](const auto& use) { return use.stream == stream; });
    if (same != uses.end()) {
      same->ticket = ticket;  // what passes later on a stream stands for what passes before
      continue;
    }
    std::erase_if(uses, [&](const auto& use) { return clock_->passed(use.ticket); });
    uses.push_back({stream, ticket});
  }
}

void PageTier::fail(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) {
    return;
  }
  broken_ = why.message().empty() ? "the device failed" : why.message();
  std::vector<RecordPtr> all;
  index_.in_eviction_order([&](const auto& entry) {
    all.push_back(entry.value);
    return true;
  });
  for (RecordPtr& record : all) {
    const RecordKey key = record->key;
    doom(key, std::move(record));
  }
}

Status PageTier::failed() const {
  return broken_.empty() ? Status() : unavailable(fmt::format("{} tier: {}", name(), broken_));
}

}  // namespace inferscale
