#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

#include "base/http_client.h"
#include "engine/engine.h"
#include "engine/vllm/address.h"
#include "inferscale/kv_store.h"
#include "inferscale/status.h"

namespace inferscale::vllm {

/// What the connector says of the engine it sits in.
struct ControlInfo {
  std::string vllm_version;
  std::string model;
  ModelSpec spec;  ///< what decides the KV; and `vocab_size`, 0 where it is not said
  KvCodec cache_dtype = KvCodec::kF16;
  KvCodec store_codec = KvCodec::kF16;
  bool injection = false;
  std::string reason;  ///< why not
  std::uint32_t max_model_len = 0;
  std::uint32_t block_size = 0;
};

/// What became of a request (docs/vllm.md).
struct RequestTrace {
  struct Span {
    RecordKey key;
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };
  std::uint32_t local_hit = 0;
  std::uint32_t injected = 0;
  std::vector<Span> segments;  ///< whose KV is from records, now or by an earlier request
  std::vector<Fallback> fallbacks;
  std::vector<RecordKey> captured;
  std::string failed;
  bool finished = false;
};

/// The control channel of a connector: where it is is read again from its file whenever it does not
/// answer, since a restarted engine may have another port. Thread-safe. Errors of every call:
/// kUnavailable (no file, not reachable, no JSON; the advice names the file), those that the
/// channel answers with.
class ControlClient {
 public:
  /// `secret` is the installation's; `file` is the connector's control.json unless `address` says
  /// another.
  ControlClient(VllmAddress address, const std::filesystem::path& file,
                std::span<const std::byte> secret);

  [[nodiscard]] Result<ControlInfo> info();
  /// For each key whether a record of it is ready on every rank.
  [[nodiscard]] Result<std::vector<bool>> ready(std::span<const RecordKey> keys);
  /// Returns when every rank has erased. With an empty user: shared records.
  [[nodiscard]] Result<EraseCounts> erase(const OwnerEpoch& owner, std::span<const RecordKey> keys);
  /// Errors: kNotFound (no such request, or too long ago).
  [[nodiscard]] Result<RequestTrace> trace(const std::string& request);
  /// Counters and tiers of the ranks, added up.
  [[nodiscard]] Result<std::vector<TierStats>> tiers();

 private:
  [[nodiscard]] Result<std::string> place(bool again);
  [[nodiscard]] Result<nlohmann::json> call(const char* method, const std::string& path,
                                            const nlohmann::json& body);

  const VllmAddress address_;
  const std::filesystem::path file_;
  const std::string token_;
  const std::unique_ptr<HttpClient> client_;
  // The channel has few connections, and a thread for each in the engine's process.
  static constexpr int kCallsAtOnce = 8;
  std::counting_semaphore<> slots_{kCallsAtOnce};
  std::mutex mutex_;
  std::string url_;  // guarded by mutex_; empty until it is known
};

}  // namespace inferscale::vllm
