#include "model/content_hash.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

namespace inferscale {
namespace {

constexpr std::size_t kChunk = 1U << 20;
constexpr std::string_view kCacheMagic = "inferscale content hash 1";

// A file changed twice within one tick of the file system's clock keeps its times. What was touched
// this recently is hashed again instead of being cached.
constexpr std::int64_t kSettledNs = 100'000'000;

std::int64_t nanoseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

Status read_failed(const std::filesystem::path& name) {
  return unavailable(
      fmt::format("cannot read {}: {}", name.string(), std::generic_category().message(errno)));
}

Result<Hash128> hash_descriptor(int descriptor, std::uint64_t size,
                                const std::filesystem::path& name) {
  std::vector<std::byte> buffer(std::clamp<std::uint64_t>(size, 1, kChunk));
  Sha256Stream stream;
  std::uint64_t offset = 0;
  while (true) {
    const ssize_t n = ::pread(descriptor, buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (n < 0 && errno != EINTR) {
      return read_failed(name);
    }
    if (n == 0) {
      return stream.finish_128();
    }
    if (n > 0) {
      stream.update(std::span(buffer).first(static_cast<std::size_t>(n)));
      offset += static_cast<std::uint64_t>(n);
    }
  }
}

HashMessage cache_entry(const FileIdentity& identity, const Hash128& content) {
  HashMessage entry;
  entry.add_text(kCacheMagic).add_u64(identity.device).add_u64(identity.inode);
  entry.add_u64(identity.size).add_u64(static_cast<std::uint64_t>(identity.mtime_ns));
  entry.add_u64(static_cast<std::uint64_t>(identity.ctime_ns)).add_hash(content);
  const Hash128 checksum = xxh3_128(entry.bytes());
  entry.add_hash(checksum);
  return entry;
}

/// The hash stands before the checksum at the end: read it, then see whether this is exactly the
/// file that would be written for it.
std::optional<Hash128> read_cache(const std::filesystem::path& path, const FileIdentity& identity) {
  const std::size_t size = cache_entry(identity, Hash128{}).bytes().size();
  const auto data = read_file(path, size);
  if (!data.ok() || data->size() != size) {
    return std::nullopt;
  }
  Hash128 content;
  constexpr std::size_t kFieldBytes = 8 + sizeof(Hash128);
  std::copy_n(data->end() - kFieldBytes - sizeof(Hash128), sizeof(Hash128), content.bytes.begin());
  const HashMessage expected = cache_entry(identity, content);
  const bool equal = std::equal(data->begin(), data->end(), expected.bytes().begin());
  return equal ? std::optional(content) : std::nullopt;
}

void write_cache(const std::filesystem::path& path, const FileIdentity& identity,
                 const Hash128& content) {
  const std::int64_t now_ns = now_us() * 1000;
  if (now_ns - identity.ctime_ns < kSettledNs) {
    return;
  }
  Status status = posix_file_system().make_private_directory(path.parent_path());
  if (status.ok()) {
    status = write_file_atomic(path, cache_entry(identity, content).bytes(), Durability::kNone);
  }
  if (!status.ok()) {
    log_message(LogLevel::kWarning, status.with_context("content hash not cached").to_string());
  }
}

}  // namespace

Result<FileIdentity> file_identity(int descriptor, const std::filesystem::path& name) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) {
    return read_failed(name);
  }
  return FileIdentity{info.st_dev, info.st_ino, static_cast<std::uint64_t>(info.st_size),
                      nanoseconds(info.st_mtim), nanoseconds(info.st_ctim)};
}

std::filesystem::path content_hash_cache_path(const FileIdentity& identity,
                                              const std::filesystem::path& cache_directory) {
  HashMessage message;
  message.add_u64(identity.device).add_u64(identity.inode);
  return cache_directory / ("content-" + sha256_128(message.bytes()).to_hex());
}

Result<Hash128> file_content_hash(int descriptor, const std::filesystem::path& name,
                                  const std::filesystem::path& cache_directory) {
  INFERSCALE_ASSIGN_OR_RETURN(const FileIdentity before, file_identity(descriptor, name));
  const bool cached = !cache_directory.empty();
  const std::filesystem::path path = content_hash_cache_path(before, cache_directory);
  if (cached) {
    if (const std::optional<Hash128> known = read_cache(path, before)) {
      return *known;
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Hash128 content,
                              hash_descriptor(descriptor, before.size, name));
  INFERSCALE_ASSIGN_OR_RETURN(const FileIdentity after, file_identity(descriptor, name));
  if (before != after) {
    return unavailable(name.string() + " changed while it was read; try again");
  }
  if (cached) {
    write_cache(path, before, content);
  }
  return content;
}

}  // namespace inferscale
