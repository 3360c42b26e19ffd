#include <algorithm>
#include <utility>

#include "connector/rank_store_parts.h"

namespace inferscale {
namespace {

Result<std::shared_ptr<const Record>> describe(KvStore& store, const RecordKey& key) {
  return store.describe(key);
}

Result<std::shared_ptr<const Record>> inspect(KvStore& store, const RecordKey& key) {
  return store.inspect(key);
}

}  // namespace

Result<StoreVerdict> RankStore::read_each(
    KvStore& store, std::span<const RecordKey> keys,
    const std::function<Result<std::shared_ptr<const Record>>(KvStore&, const RecordKey&)>& read,
    const std::function<void(const RecordKey&, const Record&)>& keep) {
  StoreVerdict verdict;
  std::uint64_t unreadable = 0;
  for (const RecordKey& key : keys) {
    const Result<std::shared_ptr<const Record>> record = read(store, key);
    if (!record.ok()) {
      ++unreadable;
      if (record.status().code() == StatusCode::kDataLoss) {
        verdict.corrupt.push_back(key);
      }
    } else if (*record != nullptr) {  // else it was evicted or erased meanwhile
      const bool own = is_own((*record)->meta());
      own ? ++verdict.records : ++verdict.foreign;
      if (own) {
        keep(key, **record);
      }
    }
  }
  const std::lock_guard lock(mutex_);
  unreadable_ += unreadable;
  return verdict;
}

std::vector<RecordKey> RankStore::sorted_keys(const KvStore& store) {
  std::vector<RecordKey> keys = store.keys();
  std::sort(keys.begin(), keys.end());
  return keys;
}

Result<std::vector<StoredRecord>> RankStore::records() {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  std::vector<StoredRecord> all;
  const Result<StoreVerdict> verdict =
      read_each(*files->store, sorted_keys(*files->store), describe,
                [&](const RecordKey& key, const Record& record) {
                  const auto tokens = record.token_ids();
                  all.push_back({key, record.meta(), {tokens.begin(), tokens.end()}});
                });
  INFERSCALE_RETURN_IF_ERROR(verdict.status());
  return all;
}

Result<StoreVerdict> RankStore::verify() {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  return read_each(*files->store, sorted_keys(*files->store), inspect,
                   [](const RecordKey&, const Record&) {});
}

Result<CheckedRecords> RankStore::check(std::span<const RecordKey> keys) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Files> files, this->files());
  CheckedRecords checked;
  INFERSCALE_ASSIGN_OR_RETURN(
      StoreVerdict verdict,
      read_each(*files->store, keys, inspect,
                [&](const RecordKey& key, const Record&) { checked.sound.push_back(key); }));
  checked.corrupt = std::move(verdict.corrupt);
  return checked;
}

std::uint64_t RankStore::unreadable() const {
  const std::lock_guard lock(mutex_);
  return unreadable_;
}

}  // namespace inferscale
