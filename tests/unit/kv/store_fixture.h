#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "inferscale/kv_store.h"
#include "unit/kv/sample_records.h"
#include "unit/kv/segment_files.h"

namespace inferscale::testing {

/// Record number n, its key, and the request that matches it. All records have the same size.
struct Item {
  explicit Item(std::uint32_t number, std::uint8_t scope = 0x33) : key(key_of(number)) {
    options.seed = number + 1;
    options.scope = scope;
    meta = sample_meta(options);
    tokens = sample_tokens(options);
  }
  [[nodiscard]] std::shared_ptr<const Record> record() const { return make_record(options); }
  /// Borrows `tokens`.
  [[nodiscard]] RecordRequest request() const {
    return {key, meta.model_fingerprint, meta.shape, meta.scope, tokens, meta.context_id};
  }
  [[nodiscard]] std::uint64_t size() const { return record_bytes(meta, options.n_tokens); }

  RecordKey key;
  SampleOptions options;
  RecordMeta meta;
  std::vector<TokenId> tokens;
};

inline std::unique_ptr<KvStore> open_store(const KvStoreOptions& options) {
  auto store = KvStore::open(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? std::move(store).value() : nullptr;
}

/// A store without disk.
inline KvStoreOptions memory_options(std::uint64_t budget_bytes) {
  KvStoreOptions options;
  options.host_budget_bytes = budget_bytes;
  return options;
}

/// A store without disk that has room for `count` items.
inline std::unique_ptr<KvStore> open_memory_store(std::uint64_t count) {
  return open_store(memory_options(count * Item(0).size()));
}

/// Budgets in items; `files` null: the operating system's.
inline std::unique_ptr<KvStore> open_disk_store(const std::filesystem::path& directory,
                                                std::uint64_t host, std::uint64_t disk,
                                                FileSystem* files = nullptr) {
  return open_store({.host_budget_bytes = host * Item(0).size(),
                     .disk_budget_bytes = disk_budget(disk, Item(0).size()),
                     .directory = directory,
                     .file_system = files});
}

inline std::vector<Item> put_items(KvStore& store, std::uint32_t count) {
  std::vector<Item> items;
  for (std::uint32_t i = 0; i < count; ++i) {
    items.emplace_back(i);
    EXPECT_TRUE(store.put(items.back().key, items.back().record()).ok());
  }
  return items;
}

inline Lease acquire(KvStore& store, const RecordRequest& request) {
  return std::move(store.acquire({&request, 1}).front());
}
inline Lease acquire(KvStore& store, const Item& item) { return acquire(store, item.request()); }

inline std::uint64_t misses(const KvStore& store, MissReason reason) {
  return store.stats().misses_by_reason[static_cast<std::size_t>(reason)];
}

}  // namespace inferscale::testing
