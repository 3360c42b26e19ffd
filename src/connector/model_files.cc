#include "connector/model_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "model/content_hash.h"

namespace inferscale {
namespace {

Result<Hash128> content_of(const std::filesystem::path& path,
                           const std::filesystem::path& cache_directory) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const int error = errno;
    const std::string message =
        "cannot open " + path.string() + ": " + std::generic_category().message(error);
    return error == ENOENT ? not_found(message) : unavailable(message);
  }
  Result<Hash128> content = file_content_hash(descriptor, path, cache_directory);
  ::close(descriptor);
  return content;
}

}  // namespace

Result<Hash128> model_files_fingerprint(std::span<const std::filesystem::path> files,
                                        std::span<const std::byte> canonical,
                                        const std::filesystem::path& cache_directory) {
  std::vector<std::pair<std::string, const std::filesystem::path*>> named;
  for (const std::filesystem::path& file : files) {
    named.emplace_back(file.filename().string(), &file);
  }
  std::sort(named.begin(), named.end());
  if (named.empty()) {
    return invalid_argument("files must name at least one file of the model");
  }
  HashMessage message;
  message.add_text("inferscale model files 1").add_u64(named.size());
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (i > 0 && named[i].first == named[i - 1].first) {
      return invalid_argument("files must not have two of the name " + named[i].first);
    }
    INFERSCALE_ASSIGN_OR_RETURN(const Hash128 content,
                                content_of(*named[i].second, cache_directory));
    message.add_text(named[i].first).add_hash(content);
  }
  message.add_bytes(canonical);
  return sha256_128(message.bytes());
}

}  // namespace inferscale
