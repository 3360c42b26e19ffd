#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kv/disk_tier.h"
#include "support/memory_file_system.h"
#include "unit/kv/sample_records.h"
#include "unit/kv/segment_files.h"
#include "unit/kv/store_fixture.h"

namespace inferscale::testing {

inline const std::filesystem::path kDiskDirectory = "/kv";

/// Segments of `records` items, nothing in the background.
inline DiskTier::Options quiet_options(FileSystem& files, std::uint64_t records) {
  DiskTier::Options options;
  options.files = &files;
  options.segment_bytes =
      segment_format::kHeaderBytes + records * (segment_format::kEntryHeaderBytes + Item(0).size());
  options.background = false;
  return options;
}

inline std::unique_ptr<DiskTier> open_tier(FileSystem& files, std::uint64_t segment_records = 4,
                                           std::uint64_t budget_bytes = 1U << 20) {
  auto tier = DiskTier::open(kDiskDirectory, budget_bytes, quiet_options(files, segment_records));
  EXPECT_TRUE(tier.ok()) << tier.status().to_string();
  return tier.ok() ? std::move(*tier) : nullptr;
}

inline Status put(Tier& tier, std::uint32_t number) {
  std::vector<RecordKey> evicted;
  return tier.put(Item(number).key, Item(number).record(), &evicted);
}

inline Status erase(Tier& tier, const std::vector<std::uint32_t>& numbers) {
  std::vector<RecordKey> keys;
  for (const std::uint32_t number : numbers) {
    keys.push_back(Item(number).key);
  }
  std::uint64_t removed = 0;
  return tier.erase(keys, &removed);
}

enum class Served { kExact, kAbsent, kRefused, kWrong };

inline Served served(Tier& tier, std::uint32_t number) {
  const auto found = tier.get(Item(number).key);
  if (!found.ok()) {
    return Served::kRefused;
  }
  if (*found == nullptr) {
    return Served::kAbsent;
  }
  return same_bytes((*found)->bytes(), Item(number).record()->bytes()) ? Served::kExact
                                                                       : Served::kWrong;
}

/// Whether any file has the token ids of an item, or the start or end of its keys and values.
inline bool leaves_bytes(FileSystem& files, std::uint32_t number) {
  const Item item(number);
  const auto record = item.record();
  const std::span<const std::byte> payload(record->layer_k(0), 16);
  const std::span<const std::byte> last(record->layer_v(1), 8);
  return any_file_holds(files, kDiskDirectory, std::as_bytes(std::span(item.tokens))) ||
         any_file_holds(files, kDiskDirectory, payload) ||
         any_file_holds(files, kDiskDirectory, last);
}

}  // namespace inferscale::testing
