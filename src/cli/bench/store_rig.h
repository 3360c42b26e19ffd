#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "inferscale/kv_record.h"
#include "inferscale/status.h"
#include "kv/disk_tier.h"

namespace inferscale::cli {

/// The records of a store benchmark: a few of different content, stored under many keys.
class StoreRecords {
 public:
  [[nodiscard]] static Result<StoreRecords> create(std::uint32_t tokens);
  [[nodiscard]] std::uint64_t bytes() const { return records_.front()->bytes().size(); }
  [[nodiscard]] std::shared_ptr<const Record> record(std::uint32_t number) const {
    return records_[number % records_.size()];
  }
  [[nodiscard]] static RecordKey key(std::uint32_t number);

 private:
  std::vector<std::shared_ptr<const Record>> records_;
};

/// The same bytes in one file, written and read as plainly as can be.
class PlainFile {
 public:
  [[nodiscard]] static Result<PlainFile> create(const std::filesystem::path& path,
                                                std::uint64_t record_bytes);
  [[nodiscard]] Status write(std::uint32_t number, std::span<const std::byte> bytes) {
    return file_->write_at(number * record_bytes_, bytes);
  }
  [[nodiscard]] Status sync() { return file_->sync(); }
  /// Into a buffer that is used again.
  [[nodiscard]] Status read(std::uint32_t number) {
    return file_->read_at(number * record_bytes_, buffer_);
  }

 private:
  std::uint64_t record_bytes_ = 0;
  std::unique_ptr<File> file_;
  std::vector<std::byte> buffer_;
};

/// Takes the files of a directory out of the page cache; they must have been synced.
void forget_cached(const std::filesystem::path& directory);

/// Blocks that the files of a directory take, in bytes.
[[nodiscard]] std::uint64_t allocated_bytes(const std::filesystem::path& directory);

}  // namespace inferscale::cli
