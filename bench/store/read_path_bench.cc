// Three ways to get 50 records of a file into memory that they keep, checksums verified: pread,
// mmap and a copy, io_uring with all reads in flight. Cold: the file is taken out of the page cache
// before each round. Compare within one run only:
//   read_path_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=9
//                   --benchmark_report_aggregates_only=true
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "inferscale/kv_record.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kTokens = 28;
constexpr std::uint32_t kRecords = 400;  // 258 MB
constexpr std::uint32_t kAsked = 50;     // what one question uses

/// A file of records of SmolLM2-135M's shape below TMPDIR, removed at the end.
class RecordFile {
 public:
  RecordFile() {
    RecordMeta meta;
    meta.shape = {30, 3, 64, 64};
    const std::vector<TokenId> tokens(kTokens, 7);
    const auto record = std::move(RecordBuilder::create(meta, tokens)).value().seal();
    size = record->bytes().size();
    std::string name = (std::filesystem::temp_directory_path() / "inferscale-XXXXXX").string();
    descriptor = ::mkstemp(name.data());
    ::unlink(name.c_str());
    for (std::uint32_t i = 0; i < kRecords; ++i) {
      const auto written = ::pwrite(descriptor, record->bytes().data(), size, offset(i));
      failed |= written != static_cast<ssize_t>(size);
    }
    failed |= ::fsync(descriptor) != 0;
    map = ::mmap(nullptr, size * kRecords, PROT_READ, MAP_SHARED, descriptor, 0);
    failed |= map == MAP_FAILED;
  }
  ~RecordFile() {
    ::munmap(map, size * kRecords);
    ::close(descriptor);
  }
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  [[nodiscard]] off_t offset(std::uint32_t number) const {
    return static_cast<off_t>(number * size);
  }
  void forget_cached() const {
    ::madvise(map, size * kRecords, MADV_DONTNEED);
    (void)::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  }

  int descriptor = -1;
  std::size_t size = 0;
  void* map = nullptr;
  bool failed = false;
};

/// The least of io_uring: `depth` reads, all submitted at once, all waited for.
class Ring {
 public:
  explicit Ring(unsigned depth) {
    descriptor_ = static_cast<int>(::syscall(SYS_io_uring_setup, depth, &params_));
    if (descriptor_ < 0) {
      return;
    }
    sq_bytes_ = std::max(params_.sq_off.array + params_.sq_entries * sizeof(unsigned),
                         params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe));
    rings_ = map(sq_bytes_, IORING_OFF_SQ_RING);
    entries_ = reinterpret_cast<io_uring_sqe*>(
        map(params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  }
  ~Ring() {
    if (descriptor_ >= 0) {
      ::munmap(rings_, sq_bytes_);
      ::munmap(entries_, params_.sq_entries * sizeof(io_uring_sqe));
      ::close(descriptor_);
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  [[nodiscard]] bool usable() const {
    return descriptor_ >= 0 && (params_.features & IORING_FEAT_SINGLE_MMAP) != 0;
  }

  void add(int file, std::byte* to, std::size_t bytes, off_t offset) {
    const unsigned tail = *number(params_.sq_off.tail);
    const unsigned slot = tail & *number(params_.sq_off.ring_mask);
    io_uring_sqe& entry = entries_[slot];
    entry = {};
    entry.opcode = IORING_OP_READ;
    entry.fd = file;
    entry.addr = reinterpret_cast<std::uint64_t>(to);
    entry.len = static_cast<unsigned>(bytes);
    entry.off = static_cast<std::uint64_t>(offset);
    number(params_.sq_off.array)[slot] = slot;
    std::atomic_ref(*number(params_.sq_off.tail)).store(tail + 1, std::memory_order_release);
    ++added_;
  }

  /// Whether all reads that were added gave `bytes` each.
  bool finish(std::size_t bytes) {
    const unsigned added = std::exchange(added_, 0);
    bool whole = ::syscall(SYS_io_uring_enter, descriptor_, added, added, IORING_ENTER_GETEVENTS,
                           nullptr, 0) == added;
    const auto* completed = reinterpret_cast<const io_uring_cqe*>(rings_ + params_.cq_off.cqes);
    const unsigned head = *number(params_.cq_off.head);
    for (unsigned i = 0; i < added; ++i) {
      const auto& entry = completed[(head + i) & *number(params_.cq_off.ring_mask)];
      whole &= entry.res == static_cast<int>(bytes);
    }
    std::atomic_ref(*number(params_.cq_off.head)).store(head + added, std::memory_order_release);
    return whole;
  }

 private:
  std::byte* map(std::size_t bytes, off_t what) const {
    return static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_POPULATE, descriptor_, what));
  }
  [[nodiscard]] unsigned* number(unsigned offset) const {
    return reinterpret_cast<unsigned*>(rings_ + offset);
  }

  io_uring_params params_{};
  int descriptor_ = -1;
  std::size_t sq_bytes_ = 0;
  std::byte* rings_ = nullptr;
  io_uring_sqe* entries_ = nullptr;
  unsigned added_ = 0;
};

std::vector<std::uint32_t> random_numbers(std::mt19937& random) {
  std::vector<std::uint32_t> numbers(kRecords);
  std::iota(numbers.begin(), numbers.end(), 0U);
  std::shuffle(numbers.begin(), numbers.end(), random);
  numbers.resize(kAsked);
  return numbers;
}

/// Times `load(numbers)`, which says whether it got all records; range(0): cold.
template <typename Load>
void measure(benchmark::State& state, RecordFile& file, Load load) {
  std::mt19937 random(1);
  for (auto _ : state) {
    state.PauseTiming();
    const auto numbers = random_numbers(random);
    if (state.range(0) != 0) {
      file.forget_cached();
    }
    state.ResumeTiming();
    if (file.failed || !load(numbers)) {
      state.SkipWithError("a read failed");
      return;
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kAsked * file.size));
}

void BM_Pread(benchmark::State& state) {
  RecordFile file;
  measure(state, file, [&](const std::vector<std::uint32_t>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [&](std::uint32_t i) {
      return Record::read(file.size,
                          [&](std::span<std::byte> out) {
                            return ::pread(file.descriptor, out.data(), out.size(),
                                           file.offset(i)) == static_cast<ssize_t>(out.size())
                                       ? Status()
                                       : unavailable("read");
                          })
          .ok();
    });
  });
}

void BM_Mmap(benchmark::State& state) {
  RecordFile file;
  measure(state, file, [&](const std::vector<std::uint32_t>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [&](std::uint32_t i) {
      return Record::parse({static_cast<const std::byte*>(file.map) + file.offset(i), file.size})
          .ok();
    });
  });
}

/// Into buffers of its own that are used again, and from there into the records: a Record fills
/// itself in one call. `verify` of that copy would be the same work.
void BM_IoUring(benchmark::State& state) {
  RecordFile file;
  Ring ring(kAsked);
  if (!ring.usable()) {
    state.SkipWithError("io_uring is not there");
    return;
  }
  std::vector<std::byte> buffers(kAsked * file.size);
  measure(state, file, [&](const std::vector<std::uint32_t>& numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ring.add(file.descriptor, buffers.data() + i * file.size, file.size, file.offset(numbers[i]));
    }
    bool all = ring.finish(file.size);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      all = all && Record::parse({buffers.data() + i * file.size, file.size}).ok();
    }
    return all;
  });
}

BENCHMARK(BM_Pread)->ArgName("cold")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(BM_Mmap)->ArgName("cold")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(BM_IoUring)
    ->ArgName("cold")
    ->Arg(0)
    ->Arg(1)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace inferscale
