#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/status.h"

namespace inferscale {

/// What lies in a data directory and how it is protected.
struct DataFiles {
  std::uint64_t count = 0;                            ///< files and folders that were looked at
  std::vector<std::filesystem::path> open_to_others;  ///< modes other than 0600 and 0700
  std::vector<std::filesystem::path> leftovers;  ///< temporary files of a write that was cut off
  std::vector<std::filesystem::path> foreign;    ///< names that InferScale does not give
  std::vector<std::filesystem::path> odd;        ///< links, pipes, devices: never followed
  std::vector<std::filesystem::path> unknown;    ///< below `kv`, but nothing that the store writes
  std::vector<std::filesystem::path> impostors;  ///< a folder or link under a name of the store's
};

/// What repair puts before the name of an impostor that it moves into the data directory. From then
/// on it is as foreign as anything else that InferScale did not make.
inline constexpr std::string_view kSetAsidePrefix = "set-aside-";

/// Reads the directory, `kv` and all below it. Files that vanish meanwhile are passed over.
/// Errors: kUnavailable.
[[nodiscard]] Result<DataFiles> list_data_files(const std::filesystem::path& directory);

/// 0700 for a folder, 0600 for a file. Links are left alone; what belongs to another user is left
/// as it is, with a warning. Errors: kUnavailable.
[[nodiscard]] Status make_private(const std::filesystem::path& path);

/// Takes other users' rights away from the directory and what it holds directly; `kv` keeps out
/// whoever may not enter the directory. Errors: kUnavailable.
[[nodiscard]] Status protect_data_directory(const std::filesystem::path& directory);

}  // namespace inferscale
