#pragma once

#include <memory>

#include "engine/vllm/control_client.h"
#include "inferscale/kv_store.h"

namespace inferscale::vllm {

/// The store of a memory service whose engine is a vLLM server: records of the server's model lie
/// there, and leases name them (`Record::describe`). What is ready is asked of the connector with
/// every call, never remembered. `local` keeps the records that the data directory has of embedded
/// engines: they are not leased, but erased like the others. Thread-safe. A server that does not
/// answer has no record ready, and an erase says that it could not be reached
/// (`EraseCounts::unreached`).
class RemoteKvStore final : public KvStore {
 public:
  RemoteKvStore(std::unique_ptr<KvStore> local, std::shared_ptr<ControlClient> control)
      : local_(std::move(local)), control_(std::move(control)) {}

  std::vector<Lease> acquire(std::span<const RecordRequest> requests) override;
  /// Nothing to do for a description: the engine has the record. Errors: kInvalidArgument (a record
  /// with keys and values: there is nowhere to send them).
  Status put(const RecordKey& key, std::shared_ptr<const Record> record) override;
  /// In the server.
  bool contains(const RecordKey& key) const override;
  /// In the server or the data directory: what an erase must leave nothing of.
  bool contains_any(std::span<const RecordKey> keys) const override;
  /// Null for records of the server, which keeps their bytes to itself.
  Result<std::shared_ptr<const Record>> inspect(const RecordKey& key) override {
    return local_->inspect(key);
  }
  /// Records that belong to no user go from the server too; those of users need `erase_owned`.
  Result<EraseCounts> erase(std::span<const RecordKey> keys) override;
  Result<EraseCounts> erase_owned(const OwnerEpoch& owner,
                                  std::span<const RecordKey> keys) override;
  /// Of the data directory alone.
  Result<EraseCounts> erase_scope(const Hash128& scope) override {
    return local_->erase_scope(scope);
  }
  std::vector<RecordKey> keys() const override { return local_->keys(); }
  Status flush() override { return local_->flush(); }
  Status compact() override { return local_->compact(); }
  KvStoreStats stats() const override;

 private:
  [[nodiscard]] Result<EraseCounts> erase_both(const OwnerEpoch& owner,
                                               std::span<const RecordKey> keys);

  const std::unique_ptr<KvStore> local_;
  const std::shared_ptr<ControlClient> control_;
};

}  // namespace inferscale::vllm
