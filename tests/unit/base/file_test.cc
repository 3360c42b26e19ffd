#include "base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "base/hash.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string name = (fs::temp_directory_path() / "inferscale-file-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~FileTest() override {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  [[nodiscard]] std::string content(const fs::path& path) const {
    const auto data = read_file(path, 1 << 24);
    return data.ok() ? std::string(reinterpret_cast<const char*>(data->data()), data->size())
                     : data.status().to_string();
  }
  static unsigned mode(const fs::path& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777U : 0U;
  }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory_), {}));
  }
  static Status write(const fs::path& path, std::string_view text,
                      Durability durability = Durability::kSync) {
    return write_file_atomic(path, as_byte_span(text), durability);
  }
  fs::path directory_;
};

TEST_F(FileTest, ReadsWhatWasWritten) {
  const fs::path path = directory_ / "file";
  ASSERT_TRUE(write(path, "hello").ok());
  EXPECT_EQ(content(path), "hello");
  EXPECT_EQ(mode(path), 0600U);
  ASSERT_TRUE(write(path, "", Durability::kNone).ok());
  EXPECT_EQ(content(path), "");
  const std::string large(3'000'000, 'x');
  ASSERT_TRUE(write(path, large).ok());
  EXPECT_EQ(content(path), large);
  EXPECT_EQ(entries(), 1U);
}

TEST_F(FileTest, ReadNamesWhatIsWrong) {
  EXPECT_EQ(read_file(directory_ / "none", 10).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(write(directory_ / "file", "12345").ok());
  EXPECT_EQ(read_file(directory_ / "file", 4).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(read_file(directory_ / "file", 5).ok());
  EXPECT_EQ(read_file(directory_, 10).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(read_file(directory_ / "file" / "below", 10).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_file("", 10).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_file(directory_ / std::string("a\0b", 3), 10).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_NE(read_file(directory_ / "none", 10).status().message().find("none"), std::string::npos);
}

TEST_F(FileTest, ReadsPipesUpToTheLimit) {
  const fs::path pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ::signal(SIGPIPE, SIG_IGN);  // the second reader leaves before the writer is done
  for (const std::uint64_t limit : {200'000U, 100U}) {
    std::thread writer([&] { std::ofstream(pipe) << std::string(150'000, 'p'); });
    const auto data = read_file(pipe, limit);
    EXPECT_EQ(data.ok(), limit == 200'000);
    writer.join();
  }
}

TEST_F(FileTest, ReplacementIsAtomic) {
  const fs::path path = directory_ / "file";
  const std::string first(200'000, 'a');
  const std::string second(200'000, 'b');
  ASSERT_TRUE(write(path, first).ok());
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(write(path, i % 2 == 0 ? second : first, Durability::kNone).ok());
    }
  });
  for (int i = 0; i < 50; ++i) {
    const std::string now = content(path);
    EXPECT_TRUE(now == first || now == second);
  }
  writer.join();
}

TEST_F(FileTest, FailedWritesLeaveTheOldContentAndNoLitter) {
  EXPECT_EQ(write(directory_ / "none" / "file", "x").code(), StatusCode::kUnavailable);
  fs::create_directory(directory_ / "taken");
  const Status status = write(directory_ / "taken", "x");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("taken"), std::string::npos);
  EXPECT_EQ(entries(), 1U);
}

TEST_F(FileTest, AFullDiskIsResourceExhausted) {
  if (!fs::exists("/dev/full")) {
    GTEST_SKIP();
  }
  // A limit on file size fails like a full disk, on any file system. In a child: it stays for a
  // process.
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{1000, 1000};
    ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Status status = write(directory_ / "file", std::string(5000, 'x'));
    const bool clean = entries() == 0;
    ::_exit(status.code() == StatusCode::kResourceExhausted && clean ? 0 : 1);
  }
  int outcome = -1;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_EQ(outcome, 0);
}

TEST_F(FileTest, WipeOverwritesBeforeItRemoves) {
  const fs::path path = directory_ / "secret";
  const fs::path second_name = directory_ / "link";
  ASSERT_TRUE(write(path, std::string(1'500'000, 's')).ok());
  fs::create_hard_link(path, second_name);
  ASSERT_TRUE(wipe_file(path).ok());
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(content(second_name), std::string(1'500'000, '\0'));
  EXPECT_TRUE(wipe_file(path).ok());  // already gone
}

TEST_F(FileTest, WipeTouchesRegularFilesOnly) {
  ASSERT_TRUE(write(directory_ / "other", "keep").ok());
  fs::create_symlink(directory_ / "other", directory_ / "link");
  EXPECT_EQ(wipe_file(directory_ / "link").code(), StatusCode::kUnavailable);
  EXPECT_EQ(content(directory_ / "other"), "keep");
  EXPECT_EQ(wipe_file(directory_).code(), StatusCode::kUnavailable);
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(wipe_file(directory_ / "pipe").code(), StatusCode::kUnavailable);
}

TEST_F(FileTest, PrivateDirectoriesAreForTheOwner) {
  const fs::path path = directory_ / "a" / "b" / "c";
  ASSERT_TRUE(posix_file_system().make_private_directory(path).ok());
  EXPECT_EQ(mode(directory_ / "a"), 0700U);
  EXPECT_EQ(mode(path), 0700U);
  EXPECT_TRUE(posix_file_system().make_private_directory(path).ok());
  EXPECT_TRUE(posix_file_system().make_private_directory(path / "").ok());
  ASSERT_TRUE(write(directory_ / "file", "x").ok());
  EXPECT_EQ(posix_file_system().make_private_directory(directory_ / "file").code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(posix_file_system().make_private_directory(directory_ / "file" / "below").code(),
            StatusCode::kUnavailable);
}

TEST_F(FileTest, RandomBytesDiffer) {
  const auto first = random_bytes(32);
  const auto second = random_bytes(32);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->size(), 32U);
  EXPECT_NE(*first, *second);
  EXPECT_EQ(random_bytes(1'000'000).value().size(), 1'000'000U);
  EXPECT_TRUE(random_bytes(0).value().empty());
}

TEST_F(FileTest, LockExcludesOthersUntilItIsReleased) {
  const fs::path path = directory_ / "lock";
  {
    auto lock = FileLock::acquire(path);
    ASSERT_TRUE(lock.ok()) << lock.status().to_string();
    EXPECT_EQ(mode(path), 0600U);
    EXPECT_EQ(FileLock::acquire(path).status().code(), StatusCode::kConflict);
    const FileLock moved = std::move(*lock);
    EXPECT_EQ(FileLock::acquire(path).status().code(), StatusCode::kConflict);
  }
  EXPECT_TRUE(FileLock::acquire(path).ok());
  EXPECT_EQ(FileLock::acquire(directory_ / "none" / "lock").status().code(),
            StatusCode::kUnavailable);
}

TEST_F(FileTest, LockExcludesOtherProcessesAndDiesWithThem) {
  const fs::path path = directory_ / "lock";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = FileLock::acquire(path);
    const char ok = lock.ok() ? 'y' : 'n';
    (void)!::write(ready[1], &ok, 1);
    ::pause();
    ::_exit(0);
  }
  char ok = 'n';
  ASSERT_EQ(::read(ready[0], &ok, 1), 1);
  EXPECT_EQ(ok, 'y');
  EXPECT_EQ(FileLock::acquire(path).status().code(), StatusCode::kConflict);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_TRUE(FileLock::acquire(path).ok());
}

TEST_F(FileTest, ALockOnARemovedFileDoesNotCount) {
  const fs::path path = directory_ / "lock";
  auto first = FileLock::acquire(path);
  ASSERT_TRUE(first.ok());
  fs::remove(path);
  EXPECT_TRUE(FileLock::acquire(path).ok());
}

}  // namespace
}  // namespace inferscale
