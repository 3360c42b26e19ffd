#include "engine/vllm/remote_kv_store.h"

#include <algorithm>

#include "base/log.h"

namespace inferscale::vllm {
namespace {

Lease description_of(const RecordRequest& request) {
  RecordMeta meta;
  meta.model_fingerprint = request.model_fingerprint;
  meta.context_id = request.context_id;
  meta.scope = request.scope;
  meta.shape = request.shape;
  auto record = Record::describe(meta, request.token_ids);
  return record.ok() ? Lease(std::move(record).value()) : Lease(MissReason::kAbsent);
}

}  // namespace

std::vector<Lease> RemoteKvStore::acquire(std::span<const RecordRequest> requests) {
  std::vector<Lease> leases;
  if (requests.empty()) {
    return leases;
  }
  std::vector<RecordKey> keys;
  for (const RecordRequest& request : requests) {
    keys.push_back(request.key);
  }
  const Result<std::vector<bool>> ready = control_->ready(keys);
  if (!ready.ok()) {
    log_message(LogLevel::kWarning, "no record is used: " + ready.status().to_string());
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    leases.push_back(ready.ok() && (*ready)[i] ? description_of(requests[i])
                                               : Lease(MissReason::kAbsent));
  }
  return leases;
}

Status RemoteKvStore::put(const RecordKey&, std::shared_ptr<const Record> record) {
  if (record == nullptr || record->has_payload()) {
    return invalid_argument("record: only those that the vLLM server has captured can be kept");
  }
  return Status();
}

bool RemoteKvStore::contains(const RecordKey& key) const {
  const Result<std::vector<bool>> ready = control_->ready(std::span(&key, 1));
  return ready.ok() && ready->front();
}

bool RemoteKvStore::contains_any(std::span<const RecordKey> keys) const {
  if (keys.empty()) {
    return false;
  }
  if (local_->contains_any(keys)) {
    return true;
  }
  const Result<std::vector<bool>> ready = control_->ready(keys);
  return ready.ok() && std::find(ready->begin(), ready->end(), true) != ready->end();
}

Result<EraseCounts> RemoteKvStore::erase(std::span<const RecordKey> keys) {
  return keys.empty() ? EraseCounts() : erase_both({"", "", 0}, keys);
}

Result<EraseCounts> RemoteKvStore::erase_owned(const OwnerEpoch& owner,
                                               std::span<const RecordKey> keys) {
  return erase_both(owner, keys);
}

// The server is asked even when the data directory's own tiers failed: each must lose what it has.
Result<EraseCounts> RemoteKvStore::erase_both(const OwnerEpoch& owner,
                                              std::span<const RecordKey> keys) {
  Result<EraseCounts> local = local_->erase(keys);
  const Result<EraseCounts> remote = control_->erase(owner, keys);
  INFERSCALE_RETURN_IF_ERROR(local.status());
  EraseCounts counts = std::move(local).value();
  if (!remote.ok()) {
    counts.unreached = remote.status().to_string();
    return counts;
  }
  counts.gpu += remote->gpu;
  counts.host += remote->host;
  counts.disk += remote->disk;
  counts.leased += remote->leased;
  return counts;
}

KvStoreStats RemoteKvStore::stats() const {
  KvStoreStats stats = local_->stats();
  if (auto tiers = control_->tiers(); tiers.ok()) {
    stats.tiers.insert(stats.tiers.end(), tiers->begin(), tiers->end());
  }
  return stats;
}

}  // namespace inferscale::vllm
