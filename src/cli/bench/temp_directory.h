#pragma once

#include <filesystem>
#include <memory>

#include "inferscale/status.h"

namespace inferscale::cli {

/// A directory of its own under the system's temporary one, removed with all that is in it.
class TempDirectory {
 public:
  /// Errors: kUnavailable.
  [[nodiscard]] static Result<std::unique_ptr<TempDirectory>> create();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  explicit TempDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace inferscale::cli
