#pragma once

#include <memory>
#include <vector>

#include "base/file_system.h"
#include "support/fault_injector.h"

namespace inferscale::testing {

/// Another FileSystem, except that its steps are counted and fail as a FaultInjector says. Closing,
/// listing, and asking for sizes are no steps. Both arguments must outlive it and its files.
/// Thread-safe.
class FaultyFileSystem final : public FileSystem {
 public:
  FaultyFileSystem(FileSystem& files, FaultInjector& faults) : files_(files), faults_(faults) {}

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, OpenMode mode) override;
  Result<std::vector<FileEntry>> list(const std::filesystem::path& directory) override;
  Result<FileInfo> info(const std::filesystem::path& path) override;
  Result<FileSpace> space(const std::filesystem::path& directory) override;
  Status make_private_directory(const std::filesystem::path& path) override;
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Status remove(const std::filesystem::path& path) override;
  Status sync_directory(const std::filesystem::path& directory) override;

 private:
  FileSystem& files_;
  FaultInjector& faults_;
};

}  // namespace inferscale::testing
