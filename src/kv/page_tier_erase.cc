#include <algorithm>
#include <string>
#include <utility>

#include "kv/page_tier.h"

namespace inferscale {

void PageTier::reap() {
  retry_spoiled();
  if (doomed_count_ == 0) {
    return;
  }
  std::vector<Dirty> due;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(doomed_, [&](const RecordPtr& record) {
      if (!idle(*record)) {
        return false;
      }
      for (const std::uint32_t page : record->pages) {
        due.push_back({page, record->key});
      }
      --doomed_count_;
      return true;
    });
  }
  (void)clean(due);
}

void PageTier::tidy() {
  if (doomed_count_ == 0) {
    return;
  }
  const std::unique_lock writing(write_mutex_, std::try_to_lock);
  if (writing.owns_lock()) {
    reap();
  }
}

Status PageTier::clean(std::span<const Dirty> dirty) {
  if (dirty.empty()) {
    return Status();
  }
  std::vector<std::uint32_t> pages;
  for (const Dirty& each : dirty) {
    pages.push_back(each.page);
  }
  const Status all = memory_->zero(pages);
  Status status;
  for (const Dirty& each : dirty) {
    // After a failure each is tried by itself, so that one bad page does not cost the others.
    const Status zeroed = all.ok() ? Status() : memory_->zero({&each.page, 1});
    const std::lock_guard lock(mutex_);
    if (zeroed.ok()) {
      free_.push_back(each.page);
    } else {
      spoiled_.push_back(each);
      degraded_ = zeroed.message();
      status = zeroed;
    }
  }
  return status;
}

void PageTier::retry_spoiled() {
  while (!spoiled_.empty() && memory_->zero({&spoiled_.back().page, 1}).ok()) {
    const std::lock_guard lock(mutex_);
    free_.push_back(spoiled_.back().page);
    spoiled_.pop_back();
  }
}

PageTier::Erasing PageTier::begin_erase(std::span<const RecordKey> keys) {
  Erasing erasing;
  erasing.keys.insert(keys.begin(), keys.end());
  const std::lock_guard writing(write_mutex_);
  const std::lock_guard lock(mutex_);
  for (const RecordKey& key : erasing.keys) {
    if (const auto* entry = index_.find(key); entry != nullptr) {
      const RecordPtr record = entry->value;
      ++erasing.removed;
      if (record->leases > 0) {
        erasing.leased.push_back(key);
      }
      doom(key, record);
    }
  }
  // Also what was replaced or dropped before: nobody leases it, but its bytes are still there.
  std::erase_if(doomed_, [&](const RecordPtr& record) {
    if (record->leases > 0 || !erasing.keys.contains(record->key)) {
      return false;
    }
    erasing.unleased.push_back(record);
    --doomed_count_;
    return true;
  });
  return erasing;
}

Status PageTier::finish_erase(Erasing erasing) {
  // Without a lock: a stream may take its time. Nobody else knows these records any more.
  std::vector<Dirty> dirty;
  for (const RecordPtr& record : erasing.unleased) {
    for (const PagedRecord::Use& use : record->uses) {
      if (const Status passed = clock_->wait(use.ticket); !passed.ok()) {
        fail(passed);  // and reads nothing any more
      }
    }
    for (const std::uint32_t page : record->pages) {
      dirty.push_back({page, record->key});
    }
  }
  Status status;
  {
    const std::lock_guard writing(write_mutex_);
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(spoiled_, [&](const Dirty& each) {
        const bool mine = erasing.keys.contains(each.key);
        if (mine) {
          dirty.push_back(each);
        }
        return mine;
      });
    }
    status = clean(dirty);
  }
  if (dirty.empty()) {
    return status;
  }
  if (const Status settled = settle(); !settled.ok()) {
    status = status.ok() ? settled : status;
  }
  return status.with_context(std::string(name()) + " tier");
}

Result<std::shared_ptr<const Record>> PageTier::inspect(const RecordKey& key) {
  PageLease lease;
  {
    const std::lock_guard lock(mutex_);
    const auto* entry = index_.find(key);
    if (entry == nullptr) {
      return std::shared_ptr<const Record>();
    }
    ++entry->value->leases;
    ++leases_active_;
    lease = PageLease(shared_from_this(), entry->value);
  }
  INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder,
                              RecordBuilder::create(lease.meta(), lease.token_ids()));
  std::vector<std::byte> page(layout().page_bytes());
  for (std::size_t i = 0; i < lease.record_->pages.size(); ++i) {
    INFERSCALE_RETURN_IF_ERROR(memory_->read(lease.record_->pages[i], page).with_context(name()));
    page_to_record(layout(), page, i, builder);
  }
  std::shared_ptr<const Record> record = std::move(builder).seal();
  const auto header = record->bytes().first(lease.record_->header.size());
  if (std::equal(header.begin(), header.end(), lease.record_->header.begin())) {
    return record;
  }
  const std::lock_guard lock(mutex_);
  ++corrupt_;
  if (const auto* entry = index_.find(key); entry != nullptr && entry->value == lease.record_) {
    doom(key, lease.record_);
  }
  return data_loss(std::string(name()) + " tier: the pages differ from the record's checksum");
}

}  // namespace inferscale
