// Freed memory of records must be zero. The only place to see that is the allocator, so this
// program replaces the aligned operators new and delete, which nothing but records uses here.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"
#include "unit/kv/files.h"
#include "unit/kv/sample_records.h"
#include "unit/kv/store_fixture.h"
#include "unit/kv/temp_directory.h"

namespace {

struct Allocations {
  std::mutex mutex;
  std::map<void*, std::size_t> size_by_address;
  std::size_t freed = 0;
  std::size_t freed_dirty = 0;
};

Allocations& allocations() {
  static Allocations* const instance = new Allocations;
  return *instance;
}

void* tracked_new(std::size_t size, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  void* address = std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
  const std::lock_guard lock(allocations().mutex);
  allocations().size_by_address[address] = size;
  return address;
}

void tracked_delete(void* address) {
  if (address == nullptr) {
    return;
  }
  {
    const std::lock_guard lock(allocations().mutex);
    const auto found = allocations().size_by_address.find(address);
    const auto* bytes = static_cast<const unsigned char*>(address);
    const bool dirty = std::any_of(bytes, bytes + found->second, [](auto b) { return b != 0; });
    allocations().size_by_address.erase(found);
    ++allocations().freed;
    allocations().freed_dirty += dirty ? 1 : 0;
  }
  std::free(address);
}

}  // namespace

void* operator new(std::size_t size, std::align_val_t alignment) {
  return tracked_new(size, alignment);
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return tracked_new(size, alignment);
}
void operator delete(void* address, std::align_val_t) noexcept { tracked_delete(address); }
void operator delete(void* address, std::size_t, std::align_val_t) noexcept {
  tracked_delete(address);
}
void operator delete(void* address, std::align_val_t, const std::nothrow_t&) noexcept {
  tracked_delete(address);
}

namespace inferscale::testing {
namespace {

std::size_t live() {
  const std::lock_guard lock(allocations().mutex);
  return allocations().size_by_address.size();
}

/// How many records `action` frees; fails the test if one of them was not zero.
template <typename Action>
std::size_t freed_by(Action action) {
  const std::size_t before = allocations().freed;
  action();
  EXPECT_EQ(allocations().freed_dirty, 0U);
  return allocations().freed - before;
}

TEST(Wipe, DestructorZeroes) {
  EXPECT_EQ(freed_by([] { make_record(); }), 1U);
  EXPECT_EQ(freed_by([] { (void)RecordBuilder::create(sample_meta({}), sample_tokens({})); }), 1U);
}

TEST(Wipe, RefusedBytesAreZeroed) {
  std::vector<std::byte> bytes = copy_bytes(*make_record());
  bytes.back() ^= std::byte{1};
  EXPECT_EQ(freed_by([&] { EXPECT_FALSE(Record::parse(bytes).ok()); }), 1U);
}

TEST(Wipe, EraseZeroesAtOnceWhatNobodyHolds) {
  const auto store = open_store(memory_options(1 << 20));
  ASSERT_TRUE(store->put(key_of(1), make_record()).ok());
  const RecordKey key = key_of(1);
  EXPECT_EQ(freed_by([&] { EXPECT_EQ(store->erase({&key, 1})->host, 1U); }), 1U);
  EXPECT_EQ(live(), 0U);
}

TEST(Wipe, EraseZeroesLeasedMemoryWhenReleased) {
  const Item item(1);
  const RecordKey key = item.key;
  const TempDirectory directory;
  auto store = open_disk_store(directory.path(), 8, 8);
  ASSERT_TRUE(store->put(key, item.record()).ok());
  Lease lease = acquire(*store, item);
  ASSERT_TRUE(lease.ready());
  EXPECT_EQ(freed_by([&] { EXPECT_EQ(store->erase({&key, 1})->leased, 1U); }), 0U);
  EXPECT_TRUE(lease.record()->verify().ok());  // whoever leased it may finish
  EXPECT_TRUE(files_below(directory.path()).empty());
  store.reset();
  EXPECT_EQ(freed_by([&] { lease = Lease(); }), 1U);
  EXPECT_EQ(live(), 0U);
}

TEST(Wipe, EvictionZeroes) {
  const auto record = make_record();
  const auto store = open_store(memory_options(record->bytes().size()));
  ASSERT_TRUE(store->put(key_of(1), make_record()).ok());
  EXPECT_EQ(freed_by([&] { EXPECT_TRUE(store->put(key_of(2), make_record()).ok()); }), 1U);
}

}  // namespace
}  // namespace inferscale::testing
