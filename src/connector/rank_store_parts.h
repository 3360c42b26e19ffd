#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "base/file.h"
#include "connector/rank_store.h"

namespace inferscale {

struct RankStore::Files {
  std::optional<FileLock> lock;
  std::unique_ptr<KvStore> store;
  DeviceStore* device = nullptr;  ///< `store` itself, where there is a device
};

struct RankStore::Bound {
  PagedCache where;
  std::shared_ptr<DeviceStreams> streams;
  std::mutex mutex;  ///< of the kernels
  std::unique_ptr<PagedComposer> composer;
  std::unique_ptr<PagedCapturer> capturer;
};

}  // namespace inferscale
