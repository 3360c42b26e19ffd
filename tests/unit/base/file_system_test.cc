// What the suite of all file systems cannot ask: the modes and odd files of the operating system's,
// power cuts, and faults.
#include "base/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "support/fault_injector.h"
#include "support/faulty_file_system.h"
#include "support/memory_file_system.h"
#include "unit/kv/temp_directory.h"

namespace inferscale::testing {
namespace {

std::string content(FileSystem& files, const std::filesystem::path& path) {
  const auto data = read_file(path, 1 << 24, files);
  return data.ok() ? std::string(reinterpret_cast<const char*>(data->data()), data->size())
                   : std::string(error_row(data.status().code()).name);
}

void write(FileSystem& files, const std::filesystem::path& path, std::string_view text,
           bool sync = false) {
  const auto file = files.open(path, OpenMode::kCreate).value();
  ASSERT_TRUE(file->write_at(0, as_byte_span(text)).ok());
  if (sync) {
    ASSERT_TRUE(file->sync().ok());
    ASSERT_TRUE(files.sync_directory(path.parent_path()).ok());
  }
}

unsigned mode(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777U : 0U;
}

TEST(PosixFileSystemTest, FilesAreForTheOwner) {
  const TempDirectory directory;
  const mode_t before = ::umask(0);
  write(posix_file_system(), directory.path() / "file", "x");
  ASSERT_TRUE(posix_file_system().make_private_directory(directory.path() / "a" / "b").ok());
  ::umask(before);
  EXPECT_EQ(mode(directory.path() / "file"), 0600U);
  EXPECT_EQ(mode(directory.path() / "a"), 0700U);
  EXPECT_EQ(mode(directory.path() / "a" / "b"), 0700U);
}

TEST(PosixFileSystemTest, OpensRegularFilesOnly) {
  const TempDirectory directory;
  FileSystem& files = posix_file_system();
  write(files, directory.path() / "other", "keep");
  std::filesystem::create_symlink(directory.path() / "other", directory.path() / "link");
  ASSERT_EQ(::mkfifo((directory.path() / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "pipe"}) {
    for (const OpenMode mode : {OpenMode::kRead, OpenMode::kReadWrite, OpenMode::kCreate}) {
      EXPECT_EQ(files.open(directory.path() / name, mode).status().code(),
                StatusCode::kUnavailable);
    }
    EXPECT_EQ(files.info(directory.path() / name).status().code(), StatusCode::kUnavailable);
  }
}

TEST(PosixFileSystemTest, DescriptorsAreNotInherited) {
  const TempDirectory directory;
  const auto file = posix_file_system().open(directory.path() / "file", OpenMode::kCreate).value();
  const std::string command = "readlink /proc/self/fd/* 2>/dev/null | grep -q " +
                              directory.path().filename().string() + "/file";
  EXPECT_NE(std::system(command.c_str()), 0);  // NOLINT: no other thread changes the environment
}

TEST(PosixFileSystemTest, AFullDiskStopsAWriteHalfWay) {
  const TempDirectory directory;
  // A limit on file size fails like a full disk, on any file system: the first call writes what
  // fits, the second fails. In a child: it stays for a process.
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{1000, 1000};
    ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto file =
        posix_file_system().open(directory.path() / "file", OpenMode::kCreate).value();
    const Status status = file->write_at(0, as_byte_span(std::string(5000, 'x')));
    ::_exit(status.code() == StatusCode::kResourceExhausted ? 0 : 1);
  }
  int outcome = -1;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(content(posix_file_system(), directory.path() / "file"), std::string(1000, 'x'));
}

TEST(PosixFileSystemTest, PunchingGivesBlocksBack) {
  const TempDirectory directory;
  const auto path = directory.path() / "file";
  write(posix_file_system(), path, std::string(1U << 20, 'x'), true);
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  const auto file = posix_file_system().open(path, OpenMode::kReadWrite).value();
  const auto punched = file->punch(0, 1U << 20);
  ASSERT_TRUE(punched.ok());
  struct stat after {};
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  if (*punched) {
    EXPECT_LT(after.st_blocks, before.st_blocks / 2);
  }
  EXPECT_EQ(after.st_size, before.st_size);
}

class PowerCutTest : public ::testing::Test {
 protected:
  PowerCutTest() { (void)files_.make_private_directory("/data"); }
  MemoryFileSystem files_;
};

TEST_F(PowerCutTest, WhatWasSyncedStays) {
  write(files_, "/data/file", "synced", true);
  write(files_, "/data/file", "SYN");
  files_.power_cut();
  EXPECT_EQ(content(files_, "/data/file"), "synced");
}

TEST_F(PowerCutTest, AFileWhoseNameWasNotSyncedIsGone) {
  const auto file = files_.open("/data/file", OpenMode::kCreate).value();
  ASSERT_TRUE(file->write_at(0, as_byte_span("text")).ok());
  ASSERT_TRUE(file->sync().ok());
  files_.power_cut();
  EXPECT_EQ(content(files_, "/data/file"), "kNotFound");
  EXPECT_EQ(file->size().status().code(), StatusCode::kUnavailable);  // of the time before
}

TEST_F(PowerCutTest, AFileWhoseContentWasNotSyncedIsEmpty) {
  write(files_, "/data/file", "text");
  ASSERT_TRUE(files_.sync_directory("/data").ok());
  files_.power_cut();
  EXPECT_EQ(content(files_, "/data/file"), "");
}

TEST_F(PowerCutTest, RenamesAndRemovalsNeedASyncedDirectory) {
  write(files_, "/data/a", "a", true);
  write(files_, "/data/b", "b", true);
  ASSERT_TRUE(files_.rename("/data/a", "/data/c").ok());
  ASSERT_TRUE(files_.remove("/data/b").ok());
  files_.power_cut();
  EXPECT_EQ(content(files_, "/data/a"), "a");
  EXPECT_EQ(content(files_, "/data/b"), "b");
  EXPECT_EQ(content(files_, "/data/c"), "kNotFound");
  ASSERT_TRUE(files_.rename("/data/a", "/data/c").ok());
  ASSERT_TRUE(files_.remove("/data/b").ok());
  ASSERT_TRUE(files_.sync_directory("/data").ok());
  files_.power_cut();
  EXPECT_EQ(content(files_, "/data/a"), "kNotFound");
  EXPECT_EQ(content(files_, "/data/b"), "kNotFound");
  EXPECT_EQ(content(files_, "/data/c"), "a");
}

TEST_F(PowerCutTest, SeededCutsTearWhatWasNotSynced) {
  std::set<std::string> seen;
  std::set<std::string> names;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    MemoryFileSystem files;
    ASSERT_TRUE(files.make_private_directory("/data").ok());
    write(files, "/data/file", std::string(1024, 'o'), true);
    write(files, "/data/file", std::string(1024, 'n'));
    write(files, "/data/other", "x");
    files.power_cut(seed);
    const std::string now = content(files, "/data/file");
    seen.insert({now.front(), now.back()});
    names.insert(content(files, "/data/other"));
    EXPECT_EQ(now.substr(0, 512), std::string(512, now.front()));  // sectors are whole
  }
  EXPECT_THAT(seen, ::testing::ElementsAre("nn", "no", "on", "oo"));
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("", "kNotFound", "x"));
}

TEST_F(PowerCutTest, AnAtomicReplacementIsOldOrNewAtEveryCut) {
  for (std::uint64_t step = 1;; ++step) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      MemoryFileSystem files;
      ASSERT_TRUE(files.make_private_directory("/data").ok());
      write(files, "/data/file", std::string(2000, 'o'), true);
      FaultInjector faults;
      FaultyFileSystem faulty(files, faults);
      faults.arm({Fault::kIo, step, false, true});
      const Status status = write_file_atomic("/data/file", as_byte_span(std::string(2000, 'n')),
                                              Durability::kSync, faulty);
      files.power_cut(seed);
      const std::string now = content(files, "/data/file");
      EXPECT_TRUE(now == std::string(2000, 'n') || (now == std::string(2000, 'o') && !status.ok()))
          << step << ' ' << seed;
      if (status.ok()) {
        EXPECT_EQ(faults.faults(), 0U);
        EXPECT_GT(step, 4U);  // create, write, sync, rename, sync of the directory
        return;
      }
    }
  }
}

class FaultTest : public ::testing::Test {
 protected:
  FaultTest() { (void)memory_.make_private_directory("/data"); }
  MemoryFileSystem memory_;
  FaultInjector faults_;
  FaultyFileSystem files_{memory_, faults_};
};

TEST_F(FaultTest, CountsEveryStep) {
  ASSERT_TRUE(files_.make_private_directory("/data/a").ok());
  const auto file = files_.open("/data/a/file", OpenMode::kCreate).value();
  ASSERT_TRUE(file->write_at(0, as_byte_span("0123")).ok());
  ASSERT_TRUE(file->zero(0, 1).ok());
  ASSERT_TRUE(file->punch(1, 1).ok());
  ASSERT_TRUE(file->truncate(3).ok());
  ASSERT_TRUE(file->sync().ok());
  ASSERT_TRUE(files_.rename("/data/a/file", "/data/a/x").ok());
  ASSERT_TRUE(files_.sync_directory("/data/a").ok());
  ASSERT_TRUE(files_.remove("/data/a/x").ok());
  EXPECT_EQ(faults_.changes(), 10U);
  for (std::size_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(faults_.count(static_cast<Step>(step)), step == 0 ? 0U : 1U);
  }
  ASSERT_TRUE(files_.make_private_directory("/data/a").ok());  // is there already
  (void)files_.open("/data/a/y", OpenMode::kCreate);
  (void)files_.open("/data/a/y", OpenMode::kCreate);
  EXPECT_EQ(faults_.changes(), 11U);
  EXPECT_EQ(content(files_, "/data/a/y"), "");
  EXPECT_EQ(faults_.reads(), 1U);
}

TEST_F(FaultTest, OneStepFailsAndTheNextDoesNot) {
  const auto file = files_.open("/data/file", OpenMode::kCreate).value();
  faults_.arm({Fault::kNoSpace, 2});
  EXPECT_TRUE(file->write_at(0, as_byte_span("first")).ok());
  EXPECT_EQ(file->write_at(0, as_byte_span("other")).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(content(files_, "/data/file"), "first");
  EXPECT_TRUE(file->write_at(0, as_byte_span("third")).ok());
  faults_.arm({Fault::kIo, 1});
  EXPECT_EQ(file->sync().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(file->sync().ok());
  EXPECT_EQ(faults_.faults(), 1U);
}

TEST_F(FaultTest, AShortWriteLeavesHalf) {
  const auto file = files_.open("/data/file", OpenMode::kCreate).value();
  faults_.arm({Fault::kShort, 1});
  EXPECT_EQ(file->write_at(0, as_byte_span("123456")).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(content(files_, "/data/file"), "123");
  faults_.arm({Fault::kShort, 1});
  EXPECT_FALSE(file->zero(0, 2).ok());
  EXPECT_EQ(content(files_, "/data/file"), std::string("\00023", 3));
}

TEST_F(FaultTest, ReadsFailWhenTheyAreMeant) {
  write(files_, "/data/file", "text");
  faults_.arm({Fault::kShort, 2, true});
  write(files_, "/data/file", "more");
  EXPECT_EQ(content(files_, "/data/file"), "more");
  EXPECT_EQ(content(files_, "/data/file"), "kDataLoss");
  EXPECT_EQ(content(files_, "/data/file"), "more");
  faults_.arm({Fault::kIo, 1, true});
  EXPECT_EQ(content(files_, "/data/file"), "kUnavailable");
}

TEST_F(FaultTest, EverythingFailsUntilHealed) {
  faults_.arm({Fault::kNoSpace, 2, false, true});
  EXPECT_TRUE(files_.open("/data/file", OpenMode::kCreate).ok());
  EXPECT_FALSE(files_.open("/data/a", OpenMode::kCreate).ok());
  EXPECT_FALSE(files_.rename("/data/file", "/data/b").ok());
  EXPECT_FALSE(files_.remove("/data/file").ok());
  EXPECT_FALSE(files_.sync_directory("/data").ok());
  EXPECT_FALSE(files_.make_private_directory("/data/c").ok());
  EXPECT_TRUE(files_.list("/data").ok());
  faults_.heal();
  EXPECT_TRUE(files_.rename("/data/file", "/data/b").ok());
}

TEST_F(FaultTest, KillsTheProcessAtAStep) {
  for (const Fault fault : {Fault::kKill, Fault::kKillShort}) {
    const TempDirectory directory;
    const pid_t child = ::fork();
    if (child == 0) {
      FaultyFileSystem files(posix_file_system(), faults_);
      faults_.arm({fault, 3});
      const auto file = files.open(directory.path() / "file", OpenMode::kCreate).value();
      for (int i = 0; i < 5; ++i) {
        (void)file->write_at(static_cast<std::uint64_t>(i) * 4, as_byte_span("1234"));
      }
      ::_exit(0);
    }
    int outcome = 0;
    ASSERT_EQ(::waitpid(child, &outcome, 0), child);
    EXPECT_TRUE(WIFSIGNALED(outcome) && WTERMSIG(outcome) == SIGKILL);
    EXPECT_EQ(content(posix_file_system(), directory.path() / "file"),
              fault == Fault::kKill ? "1234" : "123412");
  }
}

}  // namespace
}  // namespace inferscale::testing
