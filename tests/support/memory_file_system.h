#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/file_system.h"

namespace inferscale::testing {

/// A FileSystem in memory that keeps what was synced apart from what was not, so that a test can
/// cut the power. As weak as the contract allows: contents survive `File::sync` alone, names only
/// `sync_directory`. Holds the directories "/" and ".". Thread-safe.
class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, OpenMode mode) override;
  Result<std::vector<FileEntry>> list(const std::filesystem::path& directory) override;
  Result<FileInfo> info(const std::filesystem::path& path) override;
  Result<FileSpace> space(const std::filesystem::path& directory) override;
  Status make_private_directory(const std::filesystem::path& path) override;
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Status remove(const std::filesystem::path& path) override;
  Status sync_directory(const std::filesystem::path& directory) override;

  /// What was not synced is gone. Files that are open fail from now on.
  void power_cut() { power_cut(std::nullopt); }
  /// Of what was not synced, each 512-byte sector of each write, each truncation and each change of
  /// a directory is kept or lost at random.
  void power_cut(std::uint64_t seed) { power_cut(std::optional(seed)); }

  /// Changes one bit of a file, synced and all, as a failing disk would. REQUIRES: it exists and is
  /// longer than `offset`.
  void flip_bit(const std::filesystem::path& path, std::uint64_t offset, unsigned bit);

  /// Whether `punch` works, as on most file systems, or returns false. At first it does.
  void set_punches(bool punches);
  /// What `space` says is free; unset: as much as there is. Writes are not held to it.
  void set_free_bytes(std::optional<std::uint64_t> bytes);

 private:
  struct Node;
  struct DirectoryChange;
  class OpenFile;
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  void power_cut(std::optional<std::uint64_t> seed);
  Status check_parent(const std::string& path) const;

  // All that follows is protected by mutex_, the contents of nodes too.
  mutable std::mutex mutex_;
  std::set<std::string> directories_;
  Names names_;
  Names durable_names_;
  std::vector<DirectoryChange> unsynced_;  // what leads from durable_names_ to names_
  std::uint64_t power_cuts_ = 0;
  std::int64_t now_ns_ = 0;  // a clock that ticks with every change
  bool punches_ = true;
  std::optional<std::uint64_t> free_bytes_;
};

}  // namespace inferscale::testing
