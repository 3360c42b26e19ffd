// The record store in memory, and its leases from disk, beside plain copies of the same bytes.
// `inferscale bench store` measures the disk tier. Compare within one run only:
//   store_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=9
//               --benchmark_report_aggregates_only=true
// Records have SmolLM2-135M's shape in f16: 28 tokens, 645,440 bytes. Files lie below TMPDIR and
// come from the page cache: what is measured is the store, not the disk.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "inferscale/kv_record.h"
#include "inferscale/kv_store.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;
constexpr std::uint32_t kFactTokens = 28;
constexpr std::uint32_t kFacts = 50;  // what one question uses
constexpr KvShape kSmolLm2{30, 3, 64, 64};

class TempDirectory {
 public:
  TempDirectory() {
    std::string name = (fs::temp_directory_path() / "inferscale-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) {
      path_ = name;
    }
  }
  ~TempDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<TokenId> tokens_of(std::uint32_t number) {
  std::vector<TokenId> tokens(kFactTokens);
  for (std::uint32_t i = 0; i < kFactTokens; ++i) {
    tokens[i] = static_cast<TokenId>((number * 131 + i) % 49152);
  }
  return tokens;
}

RecordMeta meta_of(const KvShape& shape) {
  RecordMeta meta;
  meta.shape = shape;
  meta.context_kind = ContextKind::kWindow;
  return meta;
}

RecordBuilder begin_record(std::uint32_t number, const KvShape& shape) {
  return std::move(RecordBuilder::create(meta_of(shape), tokens_of(number))).value();
}

std::shared_ptr<const Record> make_record(std::uint32_t number, const KvShape& shape = kSmolLm2) {
  RecordBuilder builder = begin_record(number, shape);
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    std::memset(builder.layer_k(layer), static_cast<int>(number + layer),
                kFactTokens * shape.k_elements() * 2);
  }
  return std::move(builder).seal();
}

/// `kFacts` (or more) records and the requests for them.
struct Facts {
  explicit Facts(std::uint32_t count, const KvShape& shape = kSmolLm2) {
    const std::byte secret[] = {std::byte{1}};
    const RecordMeta meta = meta_of(shape);
    tokens.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      tokens.push_back(tokens_of(i));
      const RecordKey key = make_record_key(secret, meta, tokens.back());
      requests.push_back(
          {key, meta.model_fingerprint, shape, meta.scope, tokens.back(), meta.context_id});
    }
  }
  std::vector<std::vector<TokenId>> tokens;
  std::vector<RecordRequest> requests;
};

std::unique_ptr<KvStore> open_store(std::uint64_t host_bytes, const fs::path& directory) {
  KvStoreOptions options;
  options.host_budget_bytes = host_bytes;
  options.directory = directory;
  return std::move(KvStore::open(options)).value();
}

void count_bytes(benchmark::State& state, std::size_t bytes_per_iteration) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes_per_iteration));
}

void BM_Memcpy(benchmark::State& state) {
  const auto record = make_record(1);
  std::vector<std::byte> target(record->bytes().size());
  for (auto _ : state) {
    std::memcpy(target.data(), record->bytes().data(), target.size());
    benchmark::ClobberMemory();
  }
  count_bytes(state, target.size());
}
BENCHMARK(BM_Memcpy);

void BM_Verify(benchmark::State& state) {
  const auto record = make_record(1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(record->verify().ok());
  }
  count_bytes(state, record->bytes().size());
}
BENCHMARK(BM_Verify);

/// Allocate, checksum and, at the end, zero; without filling the layers.
void BM_CreateAndSeal(benchmark::State& state) {
  const std::size_t size = record_bytes(meta_of(kSmolLm2), kFactTokens);
  for (auto _ : state) {
    benchmark::DoNotOptimize(begin_record(1, kSmolLm2).seal());
  }
  count_bytes(state, size);
}
BENCHMARK(BM_CreateAndSeal);

void BM_Parse(benchmark::State& state) {
  const auto record = make_record(1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(Record::parse(record->bytes()));
  }
  count_bytes(state, record->bytes().size());
}
BENCHMARK(BM_Parse);

/// Into a store without disk that is full, so that each put evicts.
void BM_PutHost(benchmark::State& state) {
  const auto record = make_record(1);
  const Facts facts(kFacts);
  const auto store = open_store(record->bytes().size() * 10, {});
  std::size_t next = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto fresh = make_record(static_cast<std::uint32_t>(next));
    state.ResumeTiming();
    if (!store->put(facts.requests[next++ % kFacts].key, std::move(fresh)).ok()) {
      state.SkipWithError("put failed");
    }
  }
  count_bytes(state, record->bytes().size());
}
BENCHMARK(BM_PutHost);

/// The leases of one question: 50 records, 32 MB; from memory, or from files with a host budget
/// that holds none.
void acquire_facts(benchmark::State& state, std::uint64_t host_bytes, const fs::path& directory) {
  const Facts facts(kFacts);
  const auto store = open_store(host_bytes, directory);
  for (std::uint32_t i = 0; i < kFacts; ++i) {
    if (!store->put(facts.requests[i].key, make_record(i)).ok()) {
      state.SkipWithError("put failed");
    }
  }
  for (auto _ : state) {
    for (const Lease& lease : store->acquire(facts.requests)) {
      if (!lease.ready()) {
        state.SkipWithError("a record is missing");
      }
    }
  }
  count_bytes(state, kFacts * record_bytes(meta_of(kSmolLm2), kFactTokens));
}

void BM_AcquireHost(benchmark::State& state) { acquire_facts(state, 1ULL << 30, {}); }
BENCHMARK(BM_AcquireHost)->Unit(benchmark::kMillisecond);

void BM_AcquireDisk(benchmark::State& state) {
  const TempDirectory directory;
  acquire_facts(state, 0, directory.path());
}
BENCHMARK(BM_AcquireDisk)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace inferscale
