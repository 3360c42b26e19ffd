#include "memory/data_files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "base/log.h"
#include "kv/index_file.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 7> kNames = {"catalog.sqlite",
                                                    "catalog.sqlite-wal",
                                                    "catalog.sqlite-shm",
                                                    "catalog.lock",
                                                    "secret",
                                                    "kv",
                                                    "vllm"};
constexpr std::string_view kTemporaryMark = ".tmp-";  // made by write_file_atomic
constexpr mode_t kRights = 0777;

Status cannot(const char* action, const fs::path& path, int error) {
  return unavailable(fmt::format("cannot {} {}: {}", action, path.string(),
                                 std::generic_category().message(error)));
}

mode_t wanted_mode(mode_t type) { return S_ISDIR(type) ? 0700 : 0600; }

/// `top`: a direct child of the data directory, whose name must be known.
void judge(const fs::path& path, bool top, DataFiles& files) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return;  // gone since it was listed
  }
  ++files.count;
  const std::string name = path.filename().string();
  if (!top && !S_ISREG(info.st_mode) && is_disk_tier_file(name)) {
    files.impostors.push_back(path);
    return;
  }
  if (top && name.starts_with(kSetAsidePrefix)) {
    files.foreign.push_back(path);
    return;
  }
  if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
    files.odd.push_back(path);
    return;
  }
  if (top && name.find(kTemporaryMark) != std::string::npos) {
    files.leftovers.push_back(path);
  } else if (top && std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    files.foreign.push_back(path);
    return;  // somebody else's: its modes are theirs, the directory's keep others out
  } else if (!top && (S_ISDIR(info.st_mode) || !is_disk_tier_file(name))) {
    files.unknown.push_back(path);
  }
  if ((info.st_mode & kRights) != wanted_mode(info.st_mode)) {
    files.open_to_others.push_back(path);
  }
}

}  // namespace

Result<DataFiles> list_data_files(const fs::path& directory) {
  DataFiles files;
  std::error_code error;
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) {
    return cannot("read", directory, errno);
  }
  if ((info.st_mode & kRights) != 0700) {
    files.open_to_others.push_back(directory);
  }
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    judge(entry->path(), true, files);
  }
  if (error) {
    return cannot("read", directory, error.value());
  }
  const fs::path records = directory / "kv";
  if (!fs::is_directory(fs::symlink_status(records, error))) {
    return files;
  }
  fs::recursive_directory_iterator entry(records, error);
  while (!error && entry != fs::recursive_directory_iterator()) {
    judge(entry->path(), false, files);
    entry.increment(error);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return cannot("read", records, error.value());
  }
  return files;
}

Status make_private(const fs::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status() : cannot("inspect", path, errno);
  }
  if ((!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) ||
      (info.st_mode & kRights) == wanted_mode(info.st_mode)) {
    return Status();
  }
  if (::chmod(path.c_str(), wanted_mode(info.st_mode)) != 0) {
    if (errno == EPERM && info.st_uid != ::geteuid()) {
      log_message(LogLevel::kWarning,
                  path.string() + ": other users may use it, and only its owner can change that");
      return Status();
    }
    return errno == ENOENT ? Status() : cannot("change the mode of", path, errno);
  }
  return Status();
}

Status protect_data_directory(const fs::path& directory) {
  for (const std::string_view name : kNames) {
    INFERSCALE_RETURN_IF_ERROR(make_private(directory / name));
  }
  return make_private(directory);
}

}  // namespace inferscale
