#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kv/page_tier.h"
#include "support/fake_device.h"
#include "unit/kv/store_fixture.h"

namespace inferscale::testing {

/// Of store_fixture.h's items; one page has room for each.
inline PageLayout item_layout() { return {SampleOptions().shape, KvCodec::kF16, 4}; }

/// An item of `n_tokens` tokens.
inline Item long_item(std::uint32_t number, std::uint32_t n_tokens) {
  Item item(number);
  item.options.n_tokens = n_tokens;
  item.tokens = sample_tokens(item.options);
  return item;
}

/// Whether a lease's pages hold exactly the item's record.
inline bool holds(const PageLease& lease, const Item& item) {
  if (!lease.ready()) {
    return false;
  }
  const auto record = item.record();
  const PageLayout layout = item_layout();
  if (lease.addresses().size() != layout.pages_for(record->n_tokens())) {
    return false;
  }
  std::vector<std::byte> expected(layout.page_bytes());
  for (std::size_t i = 0; i < lease.addresses().size(); ++i) {
    record_to_page(layout, *record, i, expected);
    if (!same_bytes(expected, {lease.addresses()[i], expected.size()})) {
      return false;
    }
  }
  return true;
}

/// One tier over memory that a test can make fail.
struct PageRig {
  explicit PageRig(std::size_t n_pages)
      : memory(make_fake_memory("gpu", item_layout(), n_pages, clock)),
        tier(PageTier::create(memory, clock)) {}

  Status put(const Item& item, PageTier::Room room = PageTier::Room::kEvict) {
    return tier->put(item.key, *item.record(), room, &evicted);
  }
  PageLease acquire(const Item& item) { return tier->acquire(item.request()); }
  bool serves(const Item& item) { return holds(acquire(item), item); }
  Status erase(const std::vector<RecordKey>& keys) {
    PageTier::Erasing erasing = tier->begin_erase(keys);
    removed = erasing.removed;
    leased = erasing.leased;
    return tier->finish_erase(std::move(erasing));
  }
  /// What the tier's owner does around work of a stream.
  void use(const PageLease& lease, void* stream) {
    clock->read(stream, lease.addresses());
    const Result<DeviceTicket> ticket = clock->mark(stream);
    ASSERT_TRUE(ticket.ok());
    const PageLease* const leases[] = {&lease};
    tier->note_use(leases, stream, *ticket);
  }
  [[nodiscard]] bool all_zero() const {
    bool zero = true;
    for (std::uint32_t page = 0; page < memory->n_pages(); ++page) {
      zero = zero && memory->is_zero(page);
    }
    return zero;
  }
  /// Every byte is accounted for: pages are free, or hold what can be leased, or are dead.
  void expect_all_free() const {
    EXPECT_EQ(tier->stats().bytes, 0U);
    EXPECT_EQ(tier->stats().dead_bytes, 0U);
    EXPECT_TRUE(all_zero());
  }

  std::shared_ptr<FakeClock> clock = std::make_shared<FakeClock>();
  std::shared_ptr<FakePageMemory> memory;
  std::shared_ptr<PageTier> tier;
  std::vector<RecordKey> evicted;
  std::uint64_t removed = 0;
  std::vector<RecordKey> leased;
};

}  // namespace inferscale::testing
