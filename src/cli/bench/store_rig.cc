#include "cli/bench/store_rig.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "base/hash.h"

namespace inferscale::cli {
namespace {

constexpr KvShape kSmolLm2{30, 3, 64, 64};
constexpr std::uint32_t kContents = 16;

template <typename Visit>
void for_each_file(const std::filesystem::path& directory, Visit visit) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->is_regular_file(error)) {
      visit(entry->path());
    }
  }
}

}  // namespace

Result<StoreRecords> StoreRecords::create(std::uint32_t tokens) {
  StoreRecords records;
  RecordMeta meta;
  meta.shape = kSmolLm2;
  meta.context_kind = ContextKind::kWindow;
  std::mt19937_64 random(1);
  for (std::uint32_t content = 0; content < kContents; ++content) {
    std::vector<TokenId> ids(tokens);
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(random() % 49152);
    }
    INFERSCALE_ASSIGN_OR_RETURN(RecordBuilder builder, RecordBuilder::create(meta, ids));
    for (std::uint32_t layer = 0; layer < kSmolLm2.n_layers; ++layer) {
      const std::size_t bytes = tokens * (kSmolLm2.k_elements() + kSmolLm2.v_elements()) * 2;
      for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
        const std::uint64_t value = random();
        std::memcpy(builder.layer_k(layer) + at, &value, sizeof(value));
      }
    }
    records.records_.push_back(std::move(builder).seal());
  }
  return records;
}

RecordKey StoreRecords::key(std::uint32_t number) {
  return RecordKey{sha256_128(std::as_bytes(std::span(&number, 1)))};
}

Result<PlainFile> PlainFile::create(const std::filesystem::path& path, std::uint64_t record_bytes) {
  PlainFile plain;
  INFERSCALE_ASSIGN_OR_RETURN(plain.file_, posix_file_system().open(path, OpenMode::kCreate));
  plain.record_bytes_ = record_bytes;
  plain.buffer_.resize(record_bytes);
  return plain;
}

void forget_cached(const std::filesystem::path& directory) {
  for_each_file(directory, [](const std::filesystem::path& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0) {
      (void)::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
      ::close(descriptor);
    }
  });
}

std::uint64_t allocated_bytes(const std::filesystem::path& directory) {
  std::uint64_t total = 0;
  for_each_file(directory, [&](const std::filesystem::path& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) {
      total += static_cast<std::uint64_t>(info.st_blocks) * 512;
    }
  });
  return total;
}

}  // namespace inferscale::cli
