#include "kv/disk_tier.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "kv/record_format.h"
#include "kv/record_header.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kExtension = ".iskv";
constexpr std::string_view kTemporaryMark = ".iskv.tmp-";  // made by write_file_atomic

struct FileStart {
  std::array<std::byte, record_format::kHeaderBytes> header{};
  std::size_t header_size = 0;
  std::uint64_t file_size = 0;
  std::int64_t modified_ns = 0;
};

/// Nothing when the file cannot be read now, which says nothing about its content.
std::optional<FileStart> read_start(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) {
    return std::nullopt;
  }
  FileStart start;
  struct stat info {};
  const bool regular = ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
  const ssize_t n = regular ? ::pread(descriptor, start.header.data(), start.header.size(), 0) : -1;
  ::close(descriptor);
  if (n < 0) {
    return std::nullopt;
  }
  start.header_size = static_cast<std::size_t>(n);
  start.file_size = static_cast<std::uint64_t>(info.st_size);
  start.modified_ns = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return start;
}

/// The key in "<32 hex>.iskv", if the file stands where `path_of` would put it.
std::optional<RecordKey> key_of(const fs::path& file) {
  const std::string stem = file.stem().string();
  const Result<Hash128> value = Hash128::from_hex(stem);
  if (file.extension() != kExtension || !value.ok() || value->to_hex() != stem ||
      file.parent_path().filename() != stem.substr(0, 2)) {
    return std::nullopt;
  }
  return RecordKey{*value};
}

/// Calls `visit` with every entry; false when the directory cannot be read.
template <typename Visit>
bool for_each_entry(const fs::path& directory, Visit visit) {
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  while (!error && entry != fs::directory_iterator()) {
    visit(entry->path());
    entry.increment(error);
  }
  return !error;
}

}  // namespace

struct DiskTier::Found {
  EvictionIndex<File>::Entry entry;
  std::int64_t modified_ns = 0;
};

Result<std::unique_ptr<DiskTier>> DiskTier::open(const fs::path& directory,
                                                 std::uint64_t budget_bytes) {
  INFERSCALE_RETURN_IF_ERROR(posix_file_system().make_private_directory(directory));
  std::unique_ptr<DiskTier> tier(new DiskTier(directory, budget_bytes));
  INFERSCALE_RETURN_IF_ERROR(tier->scan());
  return tier;
}

fs::path DiskTier::path_of(const RecordKey& key) const {
  const std::string name = key.value.to_hex();
  return directory_ / name.substr(0, 2) / (name + std::string(kExtension));
}

Status DiskTier::scan() {
  std::vector<Found> found;
  const bool readable = for_each_entry(directory_, [&](const fs::path& bucket) {
    if (bucket.filename().native().size() == 2) {
      scan_bucket(bucket, &found);
    }
  });
  if (!readable) {
    return unavailable("cannot read the directory " + directory_.string());
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.modified_ns < b.modified_ns; });
  for (Found& file : found) {
    file.entry.value.generation = next_generation_++;
    index_.insert(std::move(file.entry));
  }
  std::vector<RecordKey> evicted;
  if (const Status status = make_room(RecordKey{}, 0, &evicted); !status.ok()) {
    note_outcome(status);  // a read-only directory can still be served from
  }
  return Status();
}

void DiskTier::scan_bucket(const fs::path& bucket, std::vector<Found>* found) {
  // A bucket that cannot be read is one whose records are missing: they are encoded again.
  for_each_entry(bucket, [&](const fs::path& file) {
    if (file.filename().native().find(kTemporaryMark) != std::string::npos) {
      (void)wipe_file(file);  // tried again at the next start
    } else if (key_of(file)) {
      adopt(file, found);
    }
  });
}

void DiskTier::adopt(const fs::path& file, std::vector<Found>* found) {
  const std::optional<FileStart> start = read_start(file);
  if (!start) {
    return;
  }
  const auto header = decode_record_header(std::span(start->header.data(), start->header_size));
  if (!header.ok() ||
      record_layout(header->meta, header->n_tokens).total_bytes != start->file_size) {
    ++corrupt_;
    log_message(LogLevel::kWarning,
                file.string() + ": damaged record dropped, its fact is encoded again when wanted");
    (void)wipe_file(file);  // if it cannot be removed it is found, and refused, at the next start
    return;
  }
  Found entry;
  entry.entry = {*key_of(file), start->file_size, recompute_tokens(header->meta, header->n_tokens),
                 File{header->meta.scope}};
  entry.modified_ns = start->modified_ns;
  found->push_back(std::move(entry));
}

Status DiskTier::make_room(const RecordKey& key, std::uint64_t size,
                           std::vector<RecordKey>* evicted) {
  while (true) {
    RecordKey victim;
    bool erased = false;
    {
      const std::lock_guard lock(mutex_);
      const auto* old = index_.find(key);
      if (index_.bytes() - (old != nullptr ? old->bytes : 0) + size <= budget_bytes_) {
        return Status();
      }
      bool found = false;
      index_.in_eviction_order([&](const auto& entry) {
        found = entry.key != key;
        if (found) {
          victim = entry.key;
          erased = entry.value.erased;
        }
        return !found;
      });
      if (!found) {
        return Status();
      }
    }
    if (erased) {
      INFERSCALE_RETURN_IF_ERROR(wipe_file(path_of(victim)));
    } else if (std::error_code error; !fs::remove(path_of(victim), error) && error) {
      return unavailable(
          fmt::format("cannot remove {}: {}", path_of(victim).string(), error.message()));
    }
    const std::lock_guard lock(mutex_);
    index_.evict(victim);
    if (!erased) {
      ++evictions_;
      evicted->push_back(victim);
    }
  }
}

Status DiskTier::put(const RecordKey& key, std::shared_ptr<const Record> record,
                     std::vector<RecordKey>* evicted) {
  const std::uint64_t size = record->bytes().size();
  if (size > budget_bytes_) {
    return resource_exhausted(
        fmt::format("disk tier: a record of {} bytes is larger than the budget of {} bytes", size,
                    budget_bytes_));
  }
  const std::lock_guard writing(write_mutex_);
  Status status = make_room(key, size, evicted);
  if (status.ok()) {
    status = write(key, *record);
  }
  const std::lock_guard lock(mutex_);
  note_outcome(status);
  if (!status.ok()) {
    return unavailable("disk tier: " + status.message());
  }
  index_.remove(key);
  index_.insert({key, size, recompute_tokens(record->meta(), record->n_tokens()),
                 File{record->meta().scope, next_generation_++}});
  return Status();
}

Status DiskTier::write(const RecordKey& key, const Record& record) {
  const fs::path path = path_of(key);
  bool& bucket_exists = bucket_exists_[std::to_integer<std::size_t>(key.value.bytes[0])];
  if (!bucket_exists) {
    INFERSCALE_RETURN_IF_ERROR(posix_file_system().make_private_directory(path.parent_path()));
  }
  const Status status = write_file_atomic(path, record.bytes(), Durability::kNone);
  bucket_exists = status.ok();  // after a failure, look again
  return status;
}

void DiskTier::note_outcome(const Status& written) {
  if (!written.ok() && degraded_.empty()) {
    log_message(LogLevel::kWarning,
                "disk tier takes no records, memory only until it does: " + written.message());
  } else if (written.ok() && !degraded_.empty()) {
    log_message(LogLevel::kInfo, "disk tier takes records again");
  }
  degraded_ = written.message();
}

Result<std::shared_ptr<const Record>> DiskTier::get(const RecordKey& key) {
  std::uint64_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto* entry = index_.use(key);
    if (entry == nullptr || entry->value.erased) {
      return std::shared_ptr<const Record>();
    }
    generation = entry->value.generation;
  }
  Result<std::vector<std::byte>> bytes = read_file(path_of(key), budget_bytes_);
  if (!bytes.ok()) {
    return drop_unreadable(key, generation, bytes.status());
  }
  Result<std::shared_ptr<const Record>> record = Record::parse(*bytes);
  OPENSSL_cleanse(bytes->data(), bytes->size());  // freed memory never holds KV
  if (!record.ok()) {
    return drop_unreadable(key, generation, record.status());
  }
  const std::lock_guard lock(mutex_);
  ++hits_;
  return record;
}

Result<std::shared_ptr<const Record>> DiskTier::drop_unreadable(const RecordKey& key,
                                                                std::uint64_t generation,
                                                                const Status& why) {
  const std::lock_guard writing(write_mutex_);
  {
    const std::lock_guard lock(mutex_);
    const auto* entry = index_.find(key);
    if (entry == nullptr || entry->value.erased || entry->value.generation != generation) {
      return std::shared_ptr<const Record>();  // it was erased, evicted or replaced under the read
    }
    if (why.code() != StatusCode::kDataLoss && why.code() != StatusCode::kNotFound) {
      return unavailable("disk tier: " + why.message());  // may pass; the file may be sound
    }
    index_.remove(key);
    if (why.code() == StatusCode::kNotFound) {
      return std::shared_ptr<const Record>();
    }
    ++corrupt_;
  }
  if (const Status wiped = wipe_file(path_of(key)); !wiped.ok()) {
    log_message(LogLevel::kWarning, "corrupt record: " + wiped.message());
  }
  return why.with_context("disk tier");
}

bool DiskTier::contains(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto* entry = index_.find(key);
  return entry != nullptr && !entry->value.erased;
}

Status DiskTier::erase(std::span<const RecordKey> keys, std::uint64_t* removed) {
  const std::lock_guard writing(write_mutex_);
  std::vector<RecordKey> present;
  {
    const std::lock_guard lock(mutex_);
    for (const RecordKey& key : keys) {
      if (auto* entry = index_.find(key)) {
        entry->value.erased = true;
        present.push_back(key);
      }
    }
  }
  Status first_error;
  for (const RecordKey& key : present) {
    const Status wiped = wipe_file(path_of(key));
    if (!wiped.ok()) {
      first_error = first_error.ok() ? unavailable("disk tier: " + wiped.message()) : first_error;
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (index_.find(key) != nullptr) {  // `keys` may name it twice
      index_.remove(key);
      ++*removed;
    }
  }
  return first_error;
}

std::vector<RecordKey> DiskTier::keys(std::optional<Hash128> scope) const {
  const std::lock_guard lock(mutex_);
  std::vector<RecordKey> keys;
  index_.in_eviction_order([&](const auto& entry) {
    if (!scope || entry.value.scope == *scope) {
      keys.push_back(entry.key);
    }
    return true;
  });
  return keys;
}

TierStats DiskTier::stats() const {
  const std::lock_guard lock(mutex_);
  TierStats stats;
  stats.name = name();
  stats.records = index_.size();
  stats.bytes = index_.bytes();
  stats.budget_bytes = budget_bytes_;
  stats.hits = hits_;
  stats.evictions = evictions_;
  stats.corrupt = corrupt_;
  stats.degraded = degraded_;
  return stats;
}

}  // namespace inferscale
