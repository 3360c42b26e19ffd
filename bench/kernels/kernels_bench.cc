// Compose, capture and vector scan beside a memcpy of the same bytes. Compare within one run only:
//   kernels_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=15
//                 --benchmark_report_aggregates_only=true
// bytes_per_second counts bytes written by the kernels and the copies, bytes read by the scans.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "inferscale/kv_kernels.h"
#include "kernels/transcode.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kFactTokens = 28;
constexpr std::uint32_t kHeaderTokens = 40;

struct Model {
  KvShape shape;
  RopePairing pairing;
  std::uint32_t n_facts;
  std::uint32_t block = 0;  // rows of a block; 0: rows packed as libllama's are
  KvCodec dtype = KvCodec::kF16;
  KvCodec codec = dtype;  // of the records that are composed
};
// 1,400 tokens, 32 MB.
constexpr Model kSmolLm2{{30, 3, 64, 64}, RopePairing::kAdjacent, 50};
// The same with the other pairing.
constexpr Model kSmolHalves{{30, 3, 64, 64}, RopePairing::kHalves, 50};
// The same in vLLM's CPU layout: in a block of a head keys [dim][row], then values [row][dim].
constexpr Model kSmolBlocks{{30, 3, 64, 64}, RopePairing::kHalves, 50, 128};
constexpr Model kSmolBlocksF32{{30, 3, 64, 64}, RopePairing::kHalves, 50, 128, KvCodec::kF32};
// The first one from records of fewer bytes.
constexpr Model kSmolQ8{{30, 3, 64, 64}, RopePairing::kAdjacent, 50, 0, KvCodec::kF16,
                        KvCodec::kQ8};
constexpr Model kSmolQ4{{30, 3, 64, 64}, RopePairing::kAdjacent, 50, 0, KvCodec::kF16,
                        KvCodec::kQ4};
// 560 tokens, 73 MB.
constexpr Model kLlama8b{{32, 8, 128, 128}, RopePairing::kAdjacent, 20};
constexpr Model kLlamaQ8{{32, 8, 128, 128}, RopePairing::kAdjacent, 20, 0, KvCodec::kF16,
                         KvCodec::kQ8};
constexpr Model kLlamaQ4{{32, 8, 128, 128}, RopePairing::kAdjacent, 20, 0, KvCodec::kF16,
                         KvCodec::kQ4};

// f16 elements of about normal size.
void fill(std::byte* to, std::size_t bytes) {
  std::mt19937 random(1);
  for (std::size_t i = 0; i + 1 < bytes; i += 2) {
    const auto half = static_cast<std::uint16_t>((random() & 0x83FFU) | 0x3800U);
    std::memcpy(to + i, &half, sizeof(half));
  }
}

// Facts in records, and a cache that holds them behind a header.
class Workload {
 public:
  explicit Workload(const Model& model)
      : shape_(model.shape), dtype_(model.dtype), n_facts_(model.n_facts) {
    RopeSpec spec;
    spec.pairing = model.pairing;
    spec.rotary_dim = shape_.head_dim_k;
    const std::uint32_t used = kHeaderTokens + n_facts_ * kFactTokens;
    table_ = *RopeTable::build(spec, used);
    cache_.dtype = dtype_;
    cache_.shape = shape_;
    cache_.rows_per_block = model.block;
    cache_.n_rows = model.block == 0 ? used : (used / model.block + 1) * model.block;
    const std::size_t layer = cache_.n_rows * shape_.k_elements() * element();
    memory_.resize(2 * layer * shape_.n_layers);
    fill(memory_.data(), memory_.size());
    for (std::uint32_t i = 0; i < shape_.n_layers; ++i) {
      std::byte* at = memory_.data() + i * 2 * layer;
      cache_.k.push_back(at);
      cache_.v.push_back(at + (model.block == 0 ? layer : model.block * head_bytes()));
    }
    set_strides(model.block);
    for (std::uint32_t i = 0; i < n_facts_; ++i) {
      records_.push_back(*transcode_record(*make_record(), model.codec));
      items_.push_back({records_.back().get(), first(i), first(i), {}});
    }
  }

  [[nodiscard]] RecordBuilder make_builder() const {
    RecordMeta meta;
    meta.shape = shape_;
    meta.codec = dtype_;
    return *RecordBuilder::create(meta, std::vector<TokenId>(kFactTokens, 1));
  }

  [[nodiscard]] std::uint32_t first(std::uint32_t fact) const {
    return kHeaderTokens + fact * kFactTokens;
  }
  [[nodiscard]] std::size_t layer_bytes() const {
    return kFactTokens * shape_.k_elements() * element();
  }
  [[nodiscard]] std::size_t bytes() const { return 2 * layer_bytes() * shape_.n_layers * n_facts_; }
  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] std::uint32_t n_facts() const { return n_facts_; }
  [[nodiscard]] const RopeTable& table() const { return *table_; }
  [[nodiscard]] const std::vector<ComposeItem>& items() const { return items_; }
  [[nodiscard]] const CacheLayout& cache() const { return cache_; }
  [[nodiscard]] ConstCacheLayout const_cache() const {
    ConstCacheLayout view{cache_.dtype, cache_.shape, {}, {}};
    view.k.assign(cache_.k.begin(), cache_.k.end());
    view.v.assign(cache_.v.begin(), cache_.v.end());
    view.k_strides = cache_.k_strides;
    view.v_strides = cache_.v_strides;
    view.rows_per_block = cache_.rows_per_block;
    view.n_rows = cache_.n_rows;
    return view;
  }

 private:
  [[nodiscard]] std::size_t element() const { return codec_element_bytes(dtype_); }
  [[nodiscard]] std::size_t head_bytes() const { return shape_.head_dim_k * element(); }

  void set_strides(std::size_t block) {
    if (block == 0) {
      cache_.k_strides = {shape_.k_elements() * element(), head_bytes()};
      cache_.v_strides = cache_.k_strides;
      return;
    }
    const std::size_t head = 2 * block * head_bytes();
    cache_.k_strides = {element(), head, block * element(), shape_.n_kv_heads * head};
    cache_.v_strides = {head_bytes(), head, 0, shape_.n_kv_heads * head};
  }

  [[nodiscard]] std::shared_ptr<const Record> make_record() const {
    RecordBuilder builder = make_builder();
    for (std::uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
      fill(builder.layer_k(layer), layer_bytes());
      fill(builder.layer_v(layer), layer_bytes());
    }
    return std::move(builder).seal();
  }

  KvShape shape_;
  KvCodec dtype_;
  std::uint32_t n_facts_;
  std::shared_ptr<const RopeTable> table_;
  std::vector<std::byte> memory_;
  CacheLayout cache_;
  std::vector<std::shared_ptr<const Record>> records_;
  std::vector<ComposeItem> items_;
};

void set_bytes(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void compose(benchmark::State& state, const Model& model) {
  const Workload work(model);
  for (auto _ : state) {
    if (!kv_compose(work.items(), work.table(), work.cache()).ok()) {
      state.SkipWithError("kv_compose refused");
      return;
    }
  }
  set_bytes(state, work.bytes());
}

void capture(benchmark::State& state, const Model& model) {
  const Workload work(model);
  const ConstCacheLayout cache = work.const_cache();
  std::vector<RecordBuilder> builders;
  for (std::uint32_t i = 0; i < work.n_facts(); ++i) {
    builders.push_back(work.make_builder());
  }
  for (auto _ : state) {
    for (std::uint32_t i = 0; i < work.n_facts(); ++i) {
      const CaptureSource source{work.first(i), work.first(i), {}};
      if (!kv_capture(cache, source, work.table(), builders[i]).ok()) {
        state.SkipWithError("kv_capture refused");
        return;
      }
    }
  }
  set_bytes(state, work.bytes());
}

// The same rows from and to the same places as compose, without turning them.
void memcpy_rows(benchmark::State& state, const Model& model) {
  const Workload work(model);
  const CacheLayout& cache = work.cache();
  const std::size_t bytes = work.layer_bytes();
  for (auto _ : state) {
    for (const ComposeItem& item : work.items()) {
      for (std::uint32_t layer = 0; layer < work.shape().n_layers; ++layer) {
        const std::size_t offset = item.first_row * cache.k_strides.row;
        std::memcpy(cache.k[layer] + offset, item.record->layer_k(layer), bytes);
        std::memcpy(cache.v[layer] + offset, item.record->layer_v(layer), bytes);
      }
    }
    benchmark::ClobberMemory();
  }
  set_bytes(state, work.bytes());
}

// As many bytes in one piece.
void memcpy_whole(benchmark::State& state, const Model& model) {
  const KvShape& shape = model.shape;
  const std::size_t bytes = 2 * kFactTokens * shape.k_elements() *
                            codec_element_bytes(model.dtype) * shape.n_layers * model.n_facts;
  std::vector<std::byte> from(bytes);
  std::vector<std::byte> to(bytes);
  fill(from.data(), bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  set_bytes(state, bytes);
}

void scan(benchmark::State& state) {
  constexpr std::size_t kDim = 384;
  const auto count = static_cast<std::size_t>(state.range(0));
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> vectors(count * kDim);
  for (float& value : vectors) {
    value = uniform(random);
  }
  const std::vector<float> query(vectors.begin(), vectors.begin() + kDim);
  for (auto _ : state) {
    benchmark::DoNotOptimize(vector_scan(vectors, kDim, query, 50));
  }
  set_bytes(state, vectors.size() * sizeof(float));
}

// The least that a scan can do: read the vectors once.
void read_floats(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0)) * 384 / 2;
  const std::vector<std::uint64_t> words(count, 3);
  for (auto _ : state) {
    std::uint64_t sums[8] = {};
    for (std::size_t i = 0; i + 8 <= count; i += 8) {
      for (std::size_t j = 0; j < 8; ++j) {
        sums[j] += words[i + j];
      }
    }
    benchmark::DoNotOptimize(sums);
  }
  set_bytes(state, count * sizeof(std::uint64_t));
}

BENCHMARK_CAPTURE(compose, smollm2_135m, kSmolLm2)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compose, smollm2_q8, kSmolQ8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compose, smollm2_q4, kSmolQ4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(capture, smollm2_135m, kSmolLm2)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(memcpy_rows, smollm2_135m, kSmolLm2)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(memcpy_whole, smollm2_135m, kSmolLm2)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compose, smollm2_halves, kSmolHalves)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compose, smollm2_blocks, kSmolBlocks)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(capture, smollm2_blocks, kSmolBlocks)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compose, smollm2_blocks_f32, kSmolBlocksF32)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(capture, smollm2_blocks_f32, kSmolBlocksF32)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(memcpy_whole, smollm2_f32, kSmolBlocksF32)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compose, llama31_8b, kLlama8b)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compose, llama31_q8, kLlamaQ8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compose, llama31_q4, kLlamaQ4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(capture, llama31_8b, kLlama8b)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(memcpy_rows, llama31_8b, kLlama8b)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(memcpy_whole, llama31_8b, kLlama8b)->Unit(benchmark::kMillisecond);
BENCHMARK(scan)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond);
BENCHMARK(read_floats)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace inferscale
