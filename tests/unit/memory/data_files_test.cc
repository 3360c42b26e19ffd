// Nobody else may read a data directory, whatever the umask and however it was left.
#include "memory/data_files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "base/file.h"
#include "unit/memory/service_rig.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

class UmaskGuard {
 public:
  explicit UmaskGuard(mode_t mask) : before_(::umask(mask)) {}
  ~UmaskGuard() { ::umask(before_); }
  UmaskGuard(const UmaskGuard&) = delete;
  UmaskGuard& operator=(const UmaskGuard&) = delete;

 private:
  mode_t before_;
};

mode_t mode_of(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777U;
}

/// Every mode below, seen by this test's own eyes.
void expect_private(const fs::path& directory) {
  EXPECT_EQ(mode_of(directory), 0700U);
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    EXPECT_EQ(mode_of(entry.path()), entry.is_directory() ? 0700U : 0600U) << entry.path();
    files += entry.is_directory() ? 0 : 1;
  }
  EXPECT_GE(files, 6U);  // catalog, -wal, -shm, lock, secret, records
  const auto files_found = list_data_files(directory);
  ASSERT_TRUE(files_found.ok());
  EXPECT_THAT(files_found->open_to_others, IsEmpty());
}

class DataFilesModes : public ::testing::TestWithParam<mode_t> {};

TEST_P(DataFilesModes, ArePrivateWhateverTheUmaskAllows) {
  ServiceRig rig;
  const UmaskGuard guard(GetParam());
  rig.open();
  rig.add(user("mara"), {"Mara lives in Graz", "Mara plays the cello"});
  expect_private(rig.options.directory);
}

INSTANTIATE_TEST_SUITE_P(Umasks, DataFilesModes, ::testing::Values(0, 0022, 0077));

TEST(DataFiles, LooseOnesAreTightenedWhenTheDirectoryIsOpened) {
  ServiceRig rig;
  rig.open();
  rig.add(user("mara"), {"Mara lives in Graz"});
  rig.service.reset();
  const fs::path data = rig.options.directory;
  for (const char* name : {"catalog.sqlite", "catalog.lock", "secret"}) {
    ::chmod((data / name).c_str(), 0666);
  }
  ::chmod((data / "kv").c_str(), 0777);
  ::chmod(data.c_str(), 0777);
  rig.open();
  rig.add(user("mara"), {"Mara plays the cello"});
  expect_private(data);
}

// A vLLM server that was started first has one of its own, which signs what it will be asked.
TEST(DataFiles, TheSecretOfAServerThatWasThereFirstIsTaken) {
  for (const std::size_t size : {std::size_t{32}, std::size_t{31}}) {
    const testing::TempDirectory directory;
    const fs::path data = directory.path() / "data";
    fs::create_directories(data / "vllm");
    const std::vector<std::byte> servers(size, std::byte{7});
    ASSERT_TRUE(write_file_atomic(data / "vllm" / "secret", servers, Durability::kNone).ok());
    ServiceRig rig;
    rig.options.directory = data;
    rig.open();
    EXPECT_EQ(*read_file(data / "secret", 4096) == servers, size == 32);
    EXPECT_EQ(read_file(data / "secret", 4096)->size(), 32U);
  }
}

TEST(DataFiles, LinksAreNeverFollowed) {
  const testing::TempDirectory directory;
  const fs::path target = directory.path() / "target";
  fs::create_directory(target);
  ::chmod(target.c_str(), 0755);
  const fs::path data = directory.path() / "data";
  fs::create_directories(data);
  fs::create_directory_symlink(target, data / "kv");
  ASSERT_TRUE(protect_data_directory(data).ok());
  EXPECT_EQ(mode_of(target), 0755U);
  EXPECT_EQ(mode_of(data), 0700U);
  const auto files = list_data_files(data);
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files->odd, std::vector<fs::path>{data / "kv"});
}

TEST(DataFiles, AMissingDirectoryIsAnError) {
  EXPECT_EQ(list_data_files("/nowhere/at/all").status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace inferscale
