#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "connector/rank_store.h"
#include "unit/kv/sample_records.h"

/// A small model's rank store, with or without a device, and caches to fill.
namespace inferscale::testing {

inline constexpr std::uint32_t kHeads = 4;

inline ModelSpec model() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.shape = {2, kHeads, 8, 4};
  spec.rope.pairing = RopePairing::kHalves;
  spec.rope.rotary_dim = 8;
  spec.fingerprint = hash_of(0x11);
  return spec;
}

inline RankStoreOptions options(const std::filesystem::path& directory = {}) {
  RankStoreOptions options;
  options.directory = directory;
  options.host_budget_bytes = 1U << 20;
  options.disk_budget_bytes = 1U << 26;
  options.spec = model();
  options.codec = KvCodec::kF32;
  options.max_positions = 64;
  return options;
}

inline std::unique_ptr<RankStore> open(const RankStoreOptions& options) {
  auto store = RankStore::open(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? std::move(*store) : nullptr;
}

/// K and V rows of a model's cache, [layer][row][head][element].
struct Rows {
  explicit Rows(std::size_t n_rows, const KvShape& of = model().shape, float first = 0)
      : shape(of),
        rows(n_rows),
        k(of.n_layers * n_rows * of.k_elements()),
        v(of.n_layers * n_rows * of.v_elements()) {
    for (std::size_t i = 0; first != 0 && i < k.size(); ++i) {
      k[i] = first + 0.01F * static_cast<float>(i);
    }
    for (std::size_t i = 0; first != 0 && i < v.size(); ++i) {
      v[i] = -first - 0.01F * static_cast<float>(i);
    }
  }
  [[nodiscard]] CacheLayout layout() { return make<std::byte>(k.data(), v.data()); }
  [[nodiscard]] ConstCacheLayout const_layout() const {
    return make<const std::byte>(k.data(), v.data());
  }
  template <typename Byte, typename Float>
  BasicCacheLayout<Byte> make(Float* k_data, Float* v_data) const {
    BasicCacheLayout<Byte> cache;
    cache.dtype = KvCodec::kF32;
    cache.shape = shape;
    cache.n_rows = rows;
    cache.k_strides.head = shape.head_dim_k * 4;
    cache.v_strides.head = shape.head_dim_v * 4;
    cache.k_strides.row = shape.k_elements() * 4;
    cache.v_strides.row = shape.v_elements() * 4;
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
      cache.k.push_back(reinterpret_cast<Byte*>(k_data + layer * rows * shape.k_elements()));
      cache.v.push_back(reinterpret_cast<Byte*>(v_data + layer * rows * shape.v_elements()));
    }
    return cache;
  }
  KvShape shape;
  std::size_t rows;
  std::vector<float> k, v;
};

inline CaptureMeta meta_of(std::uint32_t number) {
  return {key_of(number), hash_of(0x33), hash_of(0x22), ContextKind::kWindow, 7};
}

inline std::vector<TokenId> tokens_of(std::uint32_t number) {
  return {static_cast<TokenId>(number), 5, 6};
}

inline LoadItem item_of(std::uint32_t number, std::uint32_t first_position) {
  return {key_of(number), hash_of(0x33), hash_of(0x22), tokens_of(number), first_position};
}

inline float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::fabs(a[i] - b[i]));
  }
  return largest;
}

/// Stores what a capture has read, when it is there; a status for each record.
inline std::vector<Status> keep_all(RankStore& store, PendingCapture pending) {
  EXPECT_TRUE(pending.wait().ok());
  std::vector<Status> statuses;
  for (std::size_t item = 0; item < pending.size(); ++item) {
    statuses.push_back(store.store(pending, item));
  }
  return statuses;
}

/// The same store over memory of the host, or over a device that is plain memory.
class RankStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static bool with_device() { return GetParam(); }
  [[nodiscard]] static std::unique_ptr<RankStore> open(const RankStoreOptions& options) {
    std::unique_ptr<RankStore> store = testing::open(options);
    if (with_device() && store != nullptr) {
      EXPECT_TRUE(store->attach_device(make_plain_device, 0, 1U << 14, 1U << 14).ok());
    }
    return store;
  }

  /// From `rows` into the store.
  static Status capture(RankStore& store, std::uint32_t number, const Rows& rows,
                        std::uint32_t first_position = 10) {
    if (!with_device()) {
      return store.capture(meta_of(number), tokens_of(number), first_position, rows.const_layout());
    }
    Rows cache = rows;
    INFERSCALE_RETURN_IF_ERROR(bind(store, cache));
    std::vector<CaptureItem> items(1);
    items[0] = {meta_of(number), tokens_of(number), first_position};
    INFERSCALE_ASSIGN_OR_RETURN(PendingCapture pending,
                                store.capture_paged(items, all_rows(cache), nullptr));
    return keep_all(store, std::move(pending)).at(0);
  }

  static Status place(RankStore& store, std::span<const PreparedLoad* const> loads, Rows& out) {
    if (!with_device()) {
      return store.compose(loads, out.layout());
    }
    const Status bound = out.rows > 0 ? bind(store, out) : Status();
    if (!bound.ok() && bound.code() != StatusCode::kUnavailable) {  // else closed: as bound before
      return bound;
    }
    return store.compose_paged(loads, all_rows(out), nullptr);
  }
  static Status compose(RankStore& store, const std::vector<LoadItem>& items, Rows& out) {
    const PreparedLoad load = store.prepare(items);
    const PreparedLoad* const loads[] = {&load};
    return place(store, loads, out);
  }

  static Status bind(RankStore& store, Rows& cache) { return store.bind_cache(cache.layout(), 64); }
  static std::vector<std::uint32_t> all_rows(const Rows& cache) {
    std::vector<std::uint32_t> rows(cache.rows);
    std::iota(rows.begin(), rows.end(), 0U);
    return rows;
  }
};

}  // namespace inferscale::testing
