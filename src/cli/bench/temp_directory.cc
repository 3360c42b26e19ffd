#include "cli/bench/temp_directory.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace inferscale::cli {

Result<std::unique_ptr<TempDirectory>> TempDirectory::create() {
  std::error_code error;
  const std::filesystem::path base = std::filesystem::temp_directory_path(error);
  std::string name = (base / "inferscale-XXXXXX").string();
  if (error || mkdtemp(name.data()) == nullptr) {
    return unavailable(
        fmt::format("no temporary directory under {}: {}", base.string(), std::strerror(errno)));
  }
  return std::unique_ptr<TempDirectory>(new TempDirectory(name));
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace inferscale::cli
