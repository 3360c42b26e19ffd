#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "kv/segment_format.h"
#include "kv/segment_scan.h"

/// What the files of a disk tier hold, past the tier.
namespace inferscale::testing {

/// Room on disk for `count` records of `size` bytes and no more, where each fills a segment.
inline std::uint64_t disk_budget(std::uint64_t count, std::uint64_t size) {
  const std::uint64_t each =
      segment_format::kHeaderBytes + segment_format::kEntryHeaderBytes + size;
  return count * each * 16 / 15 + 1;
}

inline std::vector<std::byte> file_bytes(FileSystem& files, const std::filesystem::path& path) {
  const auto file = files.open(path, OpenMode::kRead);
  if (!file.ok()) {
    return {};
  }
  std::vector<std::byte> bytes((*file)->size().value());
  EXPECT_TRUE((*file)->read_at(0, bytes).ok());
  return bytes;
}

inline void put_file(FileSystem& files, const std::filesystem::path& path,
                     std::span<const std::byte> bytes) {
  const auto file = std::move(files.open(path, OpenMode::kCreate)).value();
  EXPECT_TRUE(file->truncate(0).ok());
  EXPECT_TRUE(file->write_at(0, bytes).ok());
  EXPECT_TRUE(file->sync().ok());
  EXPECT_TRUE(files.sync_directory(path.parent_path()).ok());
}

/// Every file's content by name.
inline std::map<std::string, std::vector<std::byte>> all_files(
    FileSystem& files, const std::filesystem::path& directory) {
  std::map<std::string, std::vector<std::byte>> all;
  const std::vector<FileEntry> entries = files.list(directory).value();
  for (const FileEntry& entry : entries) {
    all[entry.name] = file_bytes(files, directory / entry.name);
  }
  return all;
}

inline bool any_file_holds(FileSystem& files, const std::filesystem::path& directory,
                           std::span<const std::byte> needle) {
  const auto all = all_files(files, directory);
  return std::any_of(all.begin(), all.end(), [&](const auto& file) {
    const std::boyer_moore_horspool_searcher searcher(
        reinterpret_cast<const char*>(needle.data()),
        reinterpret_cast<const char*>(needle.data()) + needle.size());
    const auto* begin = reinterpret_cast<const char*>(file.second.data());
    return std::search(begin, begin + file.second.size(), searcher) != begin + file.second.size();
  });
}

struct EntryPlace {
  std::filesystem::path path;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Live entries under a key, or all of them.
inline std::vector<EntryPlace> live_entries(FileSystem& files,
                                            const std::filesystem::path& directory,
                                            std::optional<RecordKey> key = std::nullopt) {
  std::vector<EntryPlace> places;
  const std::vector<FileEntry> listed = files.list(directory).value();
  for (const FileEntry& entry : listed) {
    const auto number = segment_format::segment_number(entry.name);
    if (!number) {
      continue;
    }
    const auto file = std::move(files.open(directory / entry.name, OpenMode::kRead)).value();
    const auto scan = scan_segment(*file, *number);
    if (!scan.ok()) {
      continue;
    }
    for (const ScannedEntry& found : scan->entries) {
      if ((!key || found.header.key == *key) &&
          found.header.state == segment_format::EntryState::kLive) {
        places.push_back({directory / entry.name, found.offset, found.header.bytes});
      }
    }
  }
  return places;
}

inline void flip_byte(FileSystem& files, const std::filesystem::path& path, std::uint64_t offset) {
  const auto file = std::move(files.open(path, OpenMode::kReadWrite)).value();
  std::byte value{};
  EXPECT_TRUE(file->read_at(offset, {&value, 1}).ok());
  value ^= std::byte{1};
  EXPECT_TRUE(file->write_at(offset, {&value, 1}).ok());
}

/// In the middle of the payload of all that is live under a key, or of everything.
inline void corrupt_entries(FileSystem& files, const std::filesystem::path& directory,
                            std::optional<RecordKey> key = std::nullopt) {
  const auto places = live_entries(files, directory, key);
  EXPECT_FALSE(places.empty());
  for (const EntryPlace& place : places) {
    flip_byte(files, place.path, place.offset + place.bytes / 2);
  }
}

}  // namespace inferscale::testing
