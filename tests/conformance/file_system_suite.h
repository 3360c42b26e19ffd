#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/hash.h"

namespace inferscale::testing {

/// What every FileSystem must do. One joins with a harness class and
/// INSTANTIATE_TYPED_TEST_SUITE_P:
///   struct Harness {
///     FileSystem& files();
///     std::filesystem::path root();  // an empty directory of it
///   };
template <typename Harness>
class FileSystemSuite : public ::testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) { return harness_.root() / name; }

  std::unique_ptr<File> open(const std::string& name, OpenMode mode = OpenMode::kCreate) {
    auto opened = harness_.files().open(path(name), mode);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return opened.ok() ? std::move(*opened) : nullptr;
  }
  StatusCode open_error(const std::filesystem::path& where, OpenMode mode) {
    return harness_.files().open(where, mode).status().code();
  }
  void write(const std::string& name, std::string_view text) {
    ASSERT_TRUE(open(name)->write_at(0, as_byte_span(text)).ok());
  }
  static std::string read(const File& file, std::uint64_t offset, std::size_t size) {
    std::string text(size, '?');
    const Status status = file.read_at(offset, std::as_writable_bytes(std::span(text)));
    return status.ok() ? text : status.to_string();
  }
  /// Of the file that has the name now.
  std::string content(const std::string& name) {
    const auto file = open(name, OpenMode::kRead);
    return file == nullptr ? "missing" : read(*file, 0, file->size().value());
  }
  std::vector<std::pair<std::string, bool>> list(const std::filesystem::path& directory) {
    std::vector<std::pair<std::string, bool>> entries;
    const std::vector<FileEntry> listed = harness_.files().list(directory).value();
    for (const FileEntry& entry : listed) {
      entries.emplace_back(entry.name, entry.is_directory);
    }
    return entries;
  }

  Harness harness_;
};
TYPED_TEST_SUITE_P(FileSystemSuite);

TYPED_TEST_P(FileSystemSuite, ReadsWhatWasWrittenAnywhere) {
  const auto file = this->open("file");
  EXPECT_EQ(file->size().value(), 0U);
  ASSERT_TRUE(file->write_at(0, as_byte_span("hello")).ok());
  ASSERT_TRUE(file->write_at(8, as_byte_span("world")).ok());  // leaves a gap
  ASSERT_TRUE(file->write_at(1, as_byte_span("E")).ok());
  EXPECT_EQ(file->size().value(), 13U);
  EXPECT_EQ(this->read(*file, 0, 13), std::string("hEllo\0\0\0world", 13));
  EXPECT_EQ(this->read(*file, 9, 2), "or");
  ASSERT_TRUE(file->sync().ok());
  EXPECT_EQ(this->content("file"), std::string("hEllo\0\0\0world", 13));
}

TYPED_TEST_P(FileSystemSuite, HoldsLargeWrites) {
  const std::string large(3'000'000, 'x');
  const auto file = this->open("file");
  ASSERT_TRUE(file->write_at(5, as_byte_span(large)).ok());
  EXPECT_EQ(this->read(*file, 5, large.size()), large);
  ASSERT_TRUE(file->zero(5, large.size()).ok());
  EXPECT_EQ(this->read(*file, 5, large.size()), std::string(large.size(), '\0'));
}

TYPED_TEST_P(FileSystemSuite, ReadingBeyondTheEndIsDataLoss) {
  this->write("file", "12345");
  const auto file = this->open("file", OpenMode::kRead);
  std::vector<std::byte> bytes(3);
  EXPECT_TRUE(file->read_at(2, bytes).ok());
  EXPECT_EQ(file->read_at(3, bytes).code(), StatusCode::kDataLoss);
  EXPECT_EQ(file->read_at(100, bytes).code(), StatusCode::kDataLoss);
  EXPECT_TRUE(file->read_at(5, {}).ok());
  EXPECT_FALSE(file->read_at(~std::uint64_t{0}, bytes).ok());
}

TYPED_TEST_P(FileSystemSuite, RefusesRangesThatNoFileHas) {
  const auto file = this->open("file");
  constexpr std::uint64_t kEnd = ~std::uint64_t{0};
  EXPECT_EQ(file->write_at(kEnd - 1, as_byte_span("abc")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->truncate(kEnd).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->size().value(), 0U);
}

TYPED_TEST_P(FileSystemSuite, ModesSayWhatMayBeDone) {
  EXPECT_EQ(this->open_error(this->path("file"), OpenMode::kRead), StatusCode::kNotFound);
  EXPECT_EQ(this->open_error(this->path("file"), OpenMode::kReadWrite), StatusCode::kNotFound);
  this->write("file", "text");
  const auto reader = this->open("file", OpenMode::kRead);
  EXPECT_EQ(reader->write_at(0, as_byte_span("x")).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(reader->zero(0, 1).ok());
  EXPECT_FALSE(reader->truncate(0).ok());
  EXPECT_EQ(this->content("file"), "text");
  EXPECT_TRUE(this->open("file", OpenMode::kReadWrite)->write_at(0, as_byte_span("x")).ok());
  EXPECT_EQ(this->content("file"), "xext");
  (void)this->open("file", OpenMode::kCreate);
  EXPECT_EQ(this->content("file"), "xext");  // not truncated
}

TYPED_TEST_P(FileSystemSuite, ZeroesAndPunchesInPlace) {
  this->write("file", "0123456789");
  const auto file = this->open("file", OpenMode::kReadWrite);
  ASSERT_TRUE(file->zero(2, 3).ok());
  EXPECT_EQ(this->read(*file, 0, 10), std::string("01\0\0\00056789", 10));
  const auto punched = file->punch(6, 4);
  ASSERT_TRUE(punched.ok()) << punched.status().to_string();
  EXPECT_EQ(this->read(*file, 0, 10),
            *punched ? std::string("01\0\0\0005\0\0\0\0", 10) : std::string("01\0\0\00056789", 10));
  EXPECT_EQ(file->size().value(), 10U);
  EXPECT_TRUE(file->zero(10, 0).ok());
  EXPECT_TRUE(file->punch(10, 0).ok());
  for (const auto& [offset, size] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{9, 2}, {11, 0}, {5, ~0ULL}}) {
    EXPECT_EQ(file->zero(offset, size).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(file->punch(offset, size).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(file->size().value(), 10U);
}

TYPED_TEST_P(FileSystemSuite, TruncatesBothWays) {
  this->write("file", "0123456789");
  const auto file = this->open("file", OpenMode::kReadWrite);
  ASSERT_TRUE(file->truncate(4).ok());
  EXPECT_EQ(this->content("file"), "0123");
  ASSERT_TRUE(file->truncate(6).ok());
  EXPECT_EQ(this->content("file"), std::string("0123\0\0", 6));
  ASSERT_TRUE(file->truncate(0).ok());
  EXPECT_EQ(this->content("file"), "");
}

TYPED_TEST_P(FileSystemSuite, ListsFilesAndDirectories) {
  FileSystem& files = this->harness_.files();
  ASSERT_TRUE(files.make_private_directory(this->path("a") / "b").ok());
  this->write("a/file", "x");
  this->write("other", "x");
  EXPECT_THAT(this->list(this->path("a")),
              ::testing::UnorderedElementsAre(std::pair("b", true), std::pair("file", false)));
  EXPECT_THAT(this->list(this->harness_.root()),
              ::testing::UnorderedElementsAre(std::pair("a", true), std::pair("other", false)));
  EXPECT_THAT(this->list(this->path("a/b")), ::testing::IsEmpty());
  EXPECT_EQ(files.list(this->path("none")).status().code(), StatusCode::kNotFound);
}

TYPED_TEST_P(FileSystemSuite, InformsOfSizeAndChange) {
  FileSystem& files = this->harness_.files();
  this->write("file", "12345");
  const FileInfo before = files.info(this->path("file")).value();
  EXPECT_EQ(before.size, 5U);
  FileInfo after = before;
  for (int i = 0; i < 10'000 && after.modified_ns == before.modified_ns; ++i) {
    this->write("file", "123456");
    after = files.info(this->path("file")).value();
  }
  EXPECT_EQ(after.size, 6U);
  EXPECT_GT(after.modified_ns, before.modified_ns);
  EXPECT_EQ(files.info(this->path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(files.info(this->harness_.root()).status().code(), StatusCode::kUnavailable);
}

TYPED_TEST_P(FileSystemSuite, DirectoriesAreMadeWithTheirParents) {
  FileSystem& files = this->harness_.files();
  EXPECT_TRUE(files.make_private_directory(this->path("a/b/c")).ok());
  EXPECT_TRUE(files.make_private_directory(this->path("a/b/c/")).ok());
  EXPECT_TRUE(files.make_private_directory(this->harness_.root()).ok());
  this->write("a/b/c/file", "x");
  EXPECT_EQ(files.make_private_directory(this->path("a/b/c/file")).code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(files.make_private_directory(this->path("a/b/c/file/d")).code(),
            StatusCode::kUnavailable);
  EXPECT_TRUE(files.sync_directory(this->path("a/b/c")).ok());
  EXPECT_EQ(files.sync_directory(this->path("none")).code(), StatusCode::kNotFound);
}

TYPED_TEST_P(FileSystemSuite, NeedsADirectory) {
  FileSystem& files = this->harness_.files();
  this->write("file", "x");
  EXPECT_EQ(this->open_error(this->path("none/file"), OpenMode::kCreate), StatusCode::kNotFound);
  EXPECT_EQ(this->open_error(this->harness_.root(), OpenMode::kCreate), StatusCode::kUnavailable);
  EXPECT_EQ(this->open_error(this->harness_.root(), OpenMode::kRead), StatusCode::kUnavailable);
  EXPECT_EQ(files.rename(this->path("file"), this->path("none/file")).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(this->content("file"), "x");
}

TYPED_TEST_P(FileSystemSuite, RenamesOverWhatIsThere) {
  FileSystem& files = this->harness_.files();
  ASSERT_TRUE(files.make_private_directory(this->path("a")).ok());
  this->write("from", "new");
  this->write("a/to", "old");
  const auto old = this->open("a/to", OpenMode::kRead);
  ASSERT_TRUE(files.rename(this->path("from"), this->path("a/to")).ok());
  EXPECT_EQ(this->content("a/to"), "new");
  EXPECT_EQ(this->read(*old, 0, 3), "old");
  EXPECT_EQ(files.rename(this->path("from"), this->path("x")).code(), StatusCode::kNotFound);
  EXPECT_TRUE(files.rename(this->path("a/to"), this->path("a/to")).ok());
  EXPECT_EQ(files.rename(this->path("a/to"), this->path("a")).code(), StatusCode::kUnavailable);
  EXPECT_EQ(this->content("a/to"), "new");
}

TYPED_TEST_P(FileSystemSuite, RemovesFilesThatStayReadableWhileOpen) {
  FileSystem& files = this->harness_.files();
  this->write("file", "text");
  const auto open = this->open("file", OpenMode::kReadWrite);
  ASSERT_TRUE(files.remove(this->path("file")).ok());
  EXPECT_THAT(this->list(this->harness_.root()), ::testing::IsEmpty());
  EXPECT_EQ(this->read(*open, 0, 4), "text");
  EXPECT_TRUE(files.remove(this->path("file")).ok());  // already gone
  EXPECT_EQ(files.remove(this->harness_.root()).code(), StatusCode::kUnavailable);
  this->write("file", "other");
  EXPECT_EQ(this->read(*open, 0, 4), "text");
}

TYPED_TEST_P(FileSystemSuite, RefusesPathsThatCannotBe) {
  FileSystem& files = this->harness_.files();
  const std::filesystem::path with_zero = this->path(std::string("a\0b", 3));
  for (const std::filesystem::path& path : {std::filesystem::path(), with_zero}) {
    EXPECT_EQ(this->open_error(path, OpenMode::kCreate), StatusCode::kInvalidArgument);
    EXPECT_EQ(files.list(path).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(files.info(path).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(files.make_private_directory(path).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(files.rename(path, this->path("x")).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(files.rename(this->path("x"), path).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(files.remove(path).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(files.sync_directory(path).code(), StatusCode::kInvalidArgument);
  }
}

TYPED_TEST_P(FileSystemSuite, ErrorsNameThePath) {
  FileSystem& files = this->harness_.files();
  const auto names = ::testing::HasSubstr("absent");
  EXPECT_THAT(files.open(this->path("absent"), OpenMode::kRead).status().message(), names);
  EXPECT_THAT(files.info(this->path("absent")).status().message(), names);
  EXPECT_THAT(files.list(this->path("absent")).status().message(), names);
  EXPECT_THAT(files.sync_directory(this->path("absent")).message(), names);
}

TYPED_TEST_P(FileSystemSuite, ServesManyThreads) {
  const auto shared = this->open("shared");
  std::atomic<int> wrong{0};
  const auto work = [&](std::size_t number) {
    const std::string text(100, static_cast<char>('a' + number));
    const std::string name = "file-" + std::to_string(number);
    for (std::size_t round = 0; round < 50; ++round) {
      wrong += shared->write_at(number * 100, as_byte_span(text)).ok() ? 0 : 1;
      wrong += this->read(*shared, number * 100, 100) == text ? 0 : 1;
      this->write(name, text);
      wrong += this->content(name) == text ? 0 : 1;
      wrong += this->harness_.files().list(this->harness_.root()).ok() ? 0 : 1;
      wrong += this->harness_.files().remove(this->path(name)).ok() ? 0 : 1;
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < 4; ++number) {
    threads.emplace_back(work, number);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

REGISTER_TYPED_TEST_SUITE_P(FileSystemSuite, ReadsWhatWasWrittenAnywhere, HoldsLargeWrites,
                            ReadingBeyondTheEndIsDataLoss, RefusesRangesThatNoFileHas,
                            ModesSayWhatMayBeDone, ZeroesAndPunchesInPlace, TruncatesBothWays,
                            ListsFilesAndDirectories, InformsOfSizeAndChange,
                            DirectoriesAreMadeWithTheirParents, NeedsADirectory,
                            RenamesOverWhatIsThere, RemovesFilesThatStayReadableWhileOpen,
                            RefusesPathsThatCannotBe, ErrorsNameThePath, ServesManyThreads);

}  // namespace inferscale::testing
