#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "crash/check.h"

namespace inferscale::testing {

/// A number from the environment.
inline std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* const value = ::getenv(name);  // NOLINT: before any thread is started
  return value == nullptr ? otherwise : ::strtoull(value, nullptr, 10);
}

/// Where the data directory of a crash test lies, and what checks put beside it.
/// A kill takes nothing from the kernel's caches, so memory will do for a disk, and is faster.
class CrashDirectory {
 public:
  CrashDirectory() {
    const std::filesystem::path parent = std::filesystem::is_directory("/dev/shm")
                                             ? "/dev/shm"
                                             : std::filesystem::temp_directory_path();
    std::string name = (parent / "inferscale-crash-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~CrashDirectory() {
    std::error_code ignored;
    if (::testing::Test::HasFailure() && setting("INFERSCALE_CRASH_KEEP", 0) != 0) {
      fmt::print("kept: {}\n", path_.string());
    } else {
      std::filesystem::remove_all(path_, ignored);
    }
  }
  CrashDirectory(const CrashDirectory&) = delete;
  CrashDirectory& operator=(const CrashDirectory&) = delete;
  [[nodiscard]] std::filesystem::path data() const { return path_ / "data"; }
  [[nodiscard]] std::filesystem::path model() const { return path_ / "model.gguf"; }

 private:
  std::filesystem::path path_;
};

inline void expect_clean(const CheckReport& report, const std::string& when) {
  for (const std::string& problem : report.problems) {
    ADD_FAILURE() << when << ": " << problem;
  }
}

}  // namespace inferscale::testing
