#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "inferscale/kv_store.h"
#include "support/faulty_file_system.h"
#include "support/memory_file_system.h"
#include "unit/kv/files.h"
#include "unit/kv/sample_records.h"
#include "unit/kv/store_fixture.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Counts warnings while it lives.
class WarningCounter {
 public:
  WarningCounter() {
    set_log_sink([this](LogLevel level, std::string_view) {
      count_ += level >= LogLevel::kWarning ? 1 : 0;
    });
  }
  ~WarningCounter() { set_log_sink(nullptr); }
  [[nodiscard]] int count() const { return count_; }

 private:
  std::atomic<int> count_{0};
};

TEST(KvStoreDisk, ServesEverythingOfAStoreLargerThanItsHostBudget) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 3, 100);
  const std::vector<Item> items = put_items(*store, 30);
  for (int round = 0; round < 2; ++round) {
    for (const Item& item : items) {
      const Lease lease = acquire(*store, item);
      ASSERT_TRUE(lease.ready());
      EXPECT_TRUE(same_bytes(lease.record()->bytes(), item.record()->bytes()));
    }
  }
  const KvStoreStats stats = store->stats();
  EXPECT_EQ(stats.tiers.at(0).name, "host");
  EXPECT_LE(stats.tiers.at(0).bytes, stats.tiers.at(0).budget_bytes);
  EXPECT_EQ(stats.tiers.at(1).name, "disk");
  EXPECT_EQ(stats.tiers.at(1).records, 30U);
  EXPECT_GT(stats.tiers.at(1).hits, 50U);
}

TEST(KvStoreDisk, PromotesToHost) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 2, 100);
  const std::vector<Item> items = put_items(*store, 3);
  EXPECT_TRUE(acquire(*store, items[0]).ready());
  const auto disk_hits = store->stats().tiers.at(1).hits;
  EXPECT_TRUE(acquire(*store, items[0]).ready());
  EXPECT_EQ(store->stats().tiers.at(1).hits, disk_hits);
}

TEST(KvStoreDisk, WithoutAHostTierLeasesAloneKeepRecords) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 0, 100);
  const std::vector<Item> items = put_items(*store, 3);
  std::vector<Lease> leases;
  for (const Item& item : items) {
    leases.push_back(acquire(*store, item));
    ASSERT_TRUE(leases.back().ready());
  }
  EXPECT_EQ(store->stats().tiers.at(0).records, 0U);
  const auto counts = store->erase({&items[2].key, 1});
  EXPECT_EQ(counts->leased, 1U);
  EXPECT_EQ(counts->disk, 1U);
  EXPECT_TRUE(leases[2].record()->verify().ok());
}

TEST(KvStoreDisk, ListsEveryKeyOnce) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 2, 100);
  const std::vector<Item> items = put_items(*store, 4);
  ASSERT_TRUE(store->erase({&items[1].key, 1}).ok());
  EXPECT_THAT(store->keys(),
              ::testing::UnorderedElementsAre(items[0].key, items[2].key, items[3].key));
}

TEST(KvStoreDisk, WorksWithoutAnyHostBudget) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 0, 100);
  const Item item(1);
  EXPECT_TRUE(store->put(item.key, item.record()).ok());
  EXPECT_TRUE(acquire(*store, item).ready());
}

TEST(KvStoreDisk, ReopenFindsRecordsInOrderOfUse) {
  const TempDirectory directory;
  {
    const auto store = open_disk_store(directory.path(), 10, 100);
    (void)put_items(*store, 10);
  }
  const auto store = open_disk_store(directory.path(), 10, 100);
  EXPECT_EQ(store->stats().tiers.at(1).records, 10U);
  EXPECT_EQ(store->stats().puts, 0U);
  for (std::uint32_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(store->contains(Item(i).key));
    EXPECT_TRUE(acquire(*store, Item(i)).ready());
  }
  EXPECT_EQ(store->erase_scope(Item(0).meta.scope)->disk, 10U);
  EXPECT_TRUE(files_below(directory.path()).empty());
}

TEST(KvStoreDisk, ReopenWithASmallerBudgetDropsTheOldest) {
  const TempDirectory directory;
  std::vector<Item> items;
  {
    const auto store = open_disk_store(directory.path(), 1, 100);
    items = put_items(*store, 6);
  }
  const auto store = open_disk_store(directory.path(), 1, 2);
  EXPECT_EQ(store->stats().tiers.at(1).records, 2U);
  EXPECT_TRUE(acquire(*store, items[4]).ready());
  EXPECT_TRUE(acquire(*store, items[5]).ready());
  EXPECT_FALSE(acquire(*store, items[3]).ready());
}

TEST(KvStoreDisk, CorruptFileIsDroppedAndCounted) {
  const TempDirectory directory;
  const Item item(1);
  {
    const auto store = open_disk_store(directory.path(), 1, 100);
    ASSERT_TRUE(store->put(item.key, item.record()).ok());
  }
  const fs::path file = files_below(directory.path()).at(0);
  std::vector<std::byte> bytes = read_bytes(file);
  bytes.back() ^= std::byte{0x80};
  write_bytes(file, bytes);
  const auto store = open_disk_store(directory.path(), 1, 100);
  EXPECT_TRUE(store->contains(item.key));  // bytes are there, unverified
  EXPECT_EQ(acquire(*store, item).reason(), MissReason::kChecksum);
  EXPECT_EQ(store->stats().tiers.at(1).corrupt, 1U);
  EXPECT_FALSE(fs::exists(file));
  EXPECT_EQ(acquire(*store, item).reason(), MissReason::kAbsent);
  ASSERT_TRUE(store->put(item.key, item.record()).ok());
  EXPECT_TRUE(acquire(*store, item).ready());
}

TEST(KvStoreDisk, CorruptMemoryIsReplacedFromDisk) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 4, 100);
  const Item item(1);
  const auto record = item.record();
  ASSERT_TRUE(store->put(item.key, record).ok());
  record->wipe();
  EXPECT_TRUE(acquire(*store, item).ready());
  EXPECT_EQ(store->stats().tiers.at(0).corrupt, 1U);
  EXPECT_EQ(store->stats().tiers.at(0).records, 1U);
}

TEST(KvStoreDisk, OpenRepairsWhatACrashLeft) {
  const TempDirectory directory;
  {
    const auto store = open_disk_store(directory.path(), 1, 4);  // a segment for each
    (void)put_items(*store, 4);
  }
  fs::remove(directory.path() / "index");
  std::vector<fs::path> files = files_below(directory.path());
  ASSERT_EQ(files.size(), 4U);
  std::sort(files.begin(), files.end());
  write_bytes(files[0], std::vector<std::byte>(10));                       // no header
  fs::resize_file(files[1], fs::file_size(files[1]) - 1);                  // torn
  write_bytes(directory.path() / "index.tmp", std::vector<std::byte>(9));  // died while writing
  write_bytes(directory.path() / "notes.txt", std::vector<std::byte>(3));  // not ours
  const auto store = open_disk_store(directory.path(), 1, 4);
  EXPECT_EQ(store->stats().tiers.at(1).records, 2U);
  EXPECT_EQ(store->stats().tiers.at(1).corrupt, 1U);
  EXPECT_EQ(store->stats().tiers.at(1).torn, 1U);
  EXPECT_EQ(files_below(directory.path()).size(), 3U);  // two segments and the foreign file
}

TEST(KvStoreDisk, FilesAndDirectoriesArePrivate) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path() / "kv", 1, 100);
  (void)put_items(*store, 1);
  for (const auto& entry : fs::recursive_directory_iterator(directory.path())) {
    const auto mode = fs::status(entry.path()).permissions();
    EXPECT_EQ(mode & fs::perms::mask, entry.is_directory()
                                          ? fs::perms::owner_all
                                          : fs::perms::owner_read | fs::perms::owner_write);
  }
}

TEST(KvStoreDisk, EraseLeavesNoByteInAnyFile) {
  const TempDirectory directory;
  auto store = open_disk_store(directory.path(), 1, 100);
  const std::vector<Item> items = put_items(*store, 5);
  const auto on_disk = [&](const Item& item) {  // token ids, or keys and values
    const auto record = item.record();
    return any_file_holds(posix_file_system(), directory.path(),
                          std::as_bytes(std::span(item.tokens))) ||
           any_file_holds(posix_file_system(), directory.path(), record->bytes().subspan(192, 32));
  };
  for (const Item& item : items) {
    EXPECT_TRUE(on_disk(item));
  }
  const RecordKey keys[] = {items[1].key, items[3].key, items[1].key};
  const auto counts = store->erase(keys);
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->disk, 2U);
  EXPECT_FALSE(on_disk(items[1]));
  EXPECT_TRUE(on_disk(items[2]));
  EXPECT_FALSE(on_disk(items[3]));
  EXPECT_EQ(acquire(*store, items[3]).reason(), MissReason::kErased);
  store.reset();
  EXPECT_EQ(open_disk_store(directory.path(), 1, 100)->stats().tiers.at(1).records, 3U);
}

TEST(KvStoreDisk, EvictedFromBothTiersIsEvicted) {
  const TempDirectory directory;
  const auto store = open_disk_store(directory.path(), 2, 4);
  const std::vector<Item> items = put_items(*store, 6);
  EXPECT_EQ(acquire(*store, items[0]).reason(), MissReason::kEvicted);
  EXPECT_TRUE(acquire(*store, items[2]).ready());
  EXPECT_LE(store->stats().tiers.at(1).bytes, store->stats().tiers.at(1).budget_bytes);
}

TEST(KvStoreDisk, UnusableDirectoryIsRefusedAtOpen) {
  const TempDirectory directory;
  write_bytes(directory.path() / "file", std::vector<std::byte>(1));
  const auto store = KvStore::open({.directory = directory.path() / "file" / "kv"});
  EXPECT_EQ(store.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(KvStore::open({.directory = "/proc/inferscale"}).status().code(),
            StatusCode::kUnavailable);
}

/// What must hold while the directory takes no files, and once it does again.
void expect_host_serves_alone(KvStore& store, std::uint32_t first) {
  const WarningCounter warnings;
  for (std::uint32_t i = first; i < first + 3; ++i) {
    const Item item(i);
    const Status status = store.put(item.key, item.record());
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("disk tier"));
    EXPECT_TRUE(acquire(store, item).ready());
  }
  EXPECT_EQ(warnings.count(), 1);  // not one per record
  EXPECT_EQ(store.stats().tiers.at(0).degraded, "");
  EXPECT_NE(store.stats().tiers.at(1).degraded, "");
}

TEST(KvStoreDisk, ADirectoryThatFailsDegradesAndRecovers) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "kv";
  const auto store = open_disk_store(path, 10, 100);
  fs::remove_all(path);
  write_bytes(path, std::vector<std::byte>(1));  // whoever runs the test, root too, fails here
  expect_host_serves_alone(*store, 0);
  fs::remove(path);
  const Item item(50);
  EXPECT_TRUE(store->put(item.key, item.record()).ok());
  EXPECT_EQ(store->stats().tiers.at(1).degraded, "");
}

/// Gives up root's right to write everywhere, for a scope and the whole process.
class WithoutRoot {
 public:
  WithoutRoot() {
    if (::geteuid() == 0) {
      active_ = ::seteuid(65534) == 0;
    }
  }
  ~WithoutRoot() {
    if (active_) {
      (void)!::seteuid(0);
    }
  }

 private:
  bool active_ = false;
};

TEST(KvStoreDisk, AReadOnlyDirectoryIsReadFromOnly) {
  const TempDirectory directory;
  fs::permissions(directory.path(), fs::perms{0755});
  const fs::path path = directory.path() / "kv";
  const Item kept(100);
  {
    const auto store = open_disk_store(path, 1, 100);
    ASSERT_TRUE(store->put(kept.key, kept.record()).ok());
  }
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    fs::permissions(entry.path(), entry.is_directory() ? fs::perms{0555} : fs::perms{0444});
  }
  fs::permissions(path, fs::perms{0555});
  {
    const WithoutRoot guard;
    const auto store = open_disk_store(path, 10, 100);
    EXPECT_TRUE(acquire(*store, kept).ready());
    expect_host_serves_alone(*store, 0);
    const auto counts = store->erase({&kept.key, 1});
    EXPECT_EQ(counts.status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(acquire(*store, kept).reason(), MissReason::kErased);
    EXPECT_FALSE(store->contains(kept.key));
    EXPECT_THAT(store->keys(), ::testing::Not(::testing::Contains(kept.key)));
  }
  fs::permissions(path, fs::perms{0755});  // lets the directory be removed
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    fs::permissions(entry.path(), fs::perms{0755});
  }
}

TEST(KvStoreDisk, FailedEraseIsTriedAgain) {
  MemoryFileSystem memory;
  FaultInjector faults;
  FaultyFileSystem files(memory, faults);
  const auto store = open_disk_store("/kv", 10, 100, &files);
  const Item item(1);
  ASSERT_TRUE(store->put(item.key, item.record()).ok());
  faults.arm({.fault = Fault::kIo, .at = 1, .until_healed = true});
  EXPECT_EQ(store->erase({&item.key, 1}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(acquire(*store, item).reason(), MissReason::kErased);
  faults.heal();
  const auto counts = store->erase_scope(item.meta.scope);
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->disk, 1U);
  EXPECT_TRUE(all_files(memory, "/kv").empty());
}

TEST(KvStoreDisk, AFullFileSystemDegradesAndRecovers) {
  const TempDirectory directory;
  if (::mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=32k") != 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs";
  }
  {
    const auto store = open_disk_store(directory.path(), 10, 1000);
    write_bytes(directory.path() / "ballast", std::vector<std::byte>(40000));
    expect_host_serves_alone(*store, 0);
    for (const fs::path& file : files_below(directory.path())) {
      EXPECT_EQ(file.string().find(".tmp-"), std::string::npos);
    }
    fs::remove(directory.path() / "ballast");
    const Item item(50);
    EXPECT_TRUE(store->put(item.key, item.record()).ok());
    EXPECT_EQ(store->stats().tiers.at(1).degraded, "");
  }
  ::umount(directory.path().c_str());
}

}  // namespace
}  // namespace inferscale::testing
