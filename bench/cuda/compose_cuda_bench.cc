#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "base/clock.h"
#include "cuda/cuda_bench.h"
#include "kernels/arguments.h"
#include "kernels/cuda/kv_capture.h"
#include "kernels/cuda/kv_compose.h"

namespace inferscale::bench {
namespace {

constexpr KvShape kShape{32, 8, 128, 128};  // Llama-3.1-8B
constexpr std::uint32_t kFactTokens = 28;
constexpr std::uint32_t kBlockRows = 16;
constexpr std::size_t kTokenBytes = std::size_t{2} * 2 * 32 * 8 * 128;
constexpr std::uint32_t kPositions = 4096;
constexpr std::uint32_t kCacheTokens = 20000;

std::shared_ptr<const RopeTable> llama_rope() {
  RopeSpec spec;
  spec.pairing = RopePairing::kHalves;
  spec.rotary_dim = 128;
  spec.freq_base = 500000.0;
  spec.scaling = RopeScaling::kLlama3;
  spec.freq_factors.assign(64, 1.0F);
  std::fill(spec.freq_factors.begin() + 32, spec.freq_factors.end(), 8.0F);
  return need(RopeTable::build(spec, kPositions));
}

// vLLM 0.26's cache: a buffer a layer, (block, row, head, [K|V]).
struct Cache {
  Cache() {
    const std::size_t head = 2 * 128 * 2;
    const std::size_t row = 8 * head;
    layout.dtype = KvCodec::kBf16;
    layout.shape = kShape;
    layout.rows_per_block = kBlockRows;
    layout.n_rows = kCacheTokens / kBlockRows * kBlockRows;
    layout.k_strides = layout.v_strides = {row, head, 0, kBlockRows * row};
    for (std::uint32_t layer = 0; layer < kShape.n_layers; ++layer) {
      buffers.push_back(random_buffer(cuda::MemoryKind::kDevice, layout.n_rows * row));
      layout.k.push_back(buffers.back().data());
      layout.v.push_back(buffers.back().data() + head / 2);
    }
  }
  std::vector<cuda::Buffer> buffers;
  CacheLayout layout;
};

// Requests of `n_tokens` tokens each in facts of 28, pages in no order, in blocks of rows in no
// order; `set` of several, so that no run finds in the L2 cache what an earlier one left there.
class Work {
 public:
  Work(const cuda::Buffer& pages, const PageLayout& layout, std::uint32_t n_requests,
       std::uint32_t n_tokens, std::uint32_t n_sets, std::uint32_t seed) {
    const std::size_t page_bytes = layout.page_bytes();
    std::mt19937 random(seed);
    std::vector<std::uint32_t> order(pages.size() / page_bytes);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::uint32_t> blocks(kCacheTokens / kBlockRows);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random);
    sets_.resize(n_sets);
    std::size_t page = 0;
    std::size_t block = 0;
    for (Set& set : sets_) {
      for (std::uint32_t request = 0; request < n_requests; ++request) {
        std::vector<std::uint32_t> rows;
        for (; rows.size() < n_tokens; ++block) {
          for (std::uint32_t r = 0; r < kBlockRows && rows.size() < n_tokens; ++r) {
            rows.push_back(blocks[block % blocks.size()] * kBlockRows + r);
          }
        }
        set.rows.push_back(std::move(rows));
        for (std::uint32_t first = 0; first < n_tokens; first += kFactTokens) {
          const std::uint32_t n = std::min(kFactTokens, n_tokens - first);
          std::vector<const std::byte*> fact;
          for (std::uint32_t p = 0; p < layout.pages_for(n); ++p, ++page) {
            fact.push_back(pages.data() + order[page % order.size()] * page_bytes);
          }
          set.pages.push_back(std::move(fact));
        }
      }
      fill_items(&set, n_tokens);
    }
  }

  [[nodiscard]] const std::vector<PagedItem>& items(int round) const {
    return sets_[static_cast<std::size_t>(round) % sets_.size()].items;
  }
  [[nodiscard]] std::size_t n_sets() const { return sets_.size(); }

 private:
  struct Set {
    std::vector<std::vector<const std::byte*>> pages;
    std::vector<std::vector<std::uint32_t>> rows;
    std::vector<PagedItem> items;
  };

  static void fill_items(Set* set, std::uint32_t n_tokens) {
    auto fact = set->pages.begin();
    for (const auto& rows : set->rows) {
      for (std::uint32_t first = 0; first < n_tokens; first += kFactTokens) {
        const std::uint32_t n = std::min(kFactTokens, n_tokens - first);
        set->items.push_back({*fact++, 0, n, 40 + first, std::span(rows).subspan(first, n)});
      }
    }
  }

  std::vector<Set> sets_;
};

// The launch alone: tables are on the device already.
class Kernel {
 public:
  Kernel(const cuda::DeviceRope& rope, const CacheLayout& cache, const PageLayout& pages,
         const Work& work) {
    const ConstCacheLayout view = kernels::as_const(cache);
    kind_.packed_codec = pages.codec;
    need(cuda::plan_moves(view, rope.table(), 1U << 16, &moves_, &kind_));
    planned_layers_ = moves_.layers_per_thread;
    describe_pages(pages, &moves_);
    layers_ = need(cuda::upload_layers(view));
    moves_.layers = reinterpret_cast<std::byte* const*>(layers_.data());
    moves_.cos = rope.cos();
    moves_.sin = rope.sin();
    for (std::size_t set = 0; set < work.n_sets(); ++set) {
      const auto& items = work.items(static_cast<int>(set));
      std::uint32_t n = 0;
      for (const PagedItem& item : items) {
        n += item.n_tokens;
      }
      std::vector<cuda::MoveToken> table(n);
      write_compose_table(items, pages, table.data());
      tables_.push_back(
          need(cuda::Buffer::allocate(cuda::MemoryKind::kDevice, n * sizeof(table[0]))));
      need(cuda::copy_async(tables_.back().data(), table.data(), n * sizeof(table[0]), nullptr));
      need(cuda::synchronize(nullptr));
      moves_.n_tokens = n;
    }
  }

  [[nodiscard]] std::uint32_t planned_layers() const { return planned_layers_; }

  /// Cuts the work otherwise than plan_moves does.
  void set_layers_per_thread(std::uint32_t layers) {
    moves_.layers_per_thread = layers;
    moves_.slices = (moves_.n_layers + layers - 1) / layers;
  }

  void launch(int round) {
    const cuda::Buffer& table = tables_[static_cast<std::size_t>(round) % tables_.size()];
    moves_.tokens = reinterpret_cast<const cuda::MoveToken*>(table.data());
    need(cuda::launch_moves(moves_, kind_, nullptr));
  }

 private:
  cuda::RowMoves moves_;
  cuda::MoveKind kind_;
  std::uint32_t planned_layers_ = 0;
  cuda::Buffer layers_;
  std::vector<cuda::Buffer> tables_;
};

nlohmann::json figures(const Times& times, double bytes, double ceiling) {
  nlohmann::json out = summary(times.device);
  const double rate = bytes / median(times.device) * 1e6;
  out["GBps"] = rate / 1e9;
  out["of_ceiling"] = rate / ceiling;
  return out;
}

struct Rig {
  const Cache& cache;
  const std::shared_ptr<const cuda::DeviceRope>& rope;
  const Ceilings& ceilings;
  int rounds;
};

nlohmann::json compose_from(const Rig& rig, const cuda::Buffer& arena, bool pinned,
                            std::uint32_t n_requests) {
  const PageLayout pages{kShape, KvCodec::kBf16, 4};
  constexpr std::uint32_t kTokens = 1000;
  const Work work(arena, pages, n_requests, kTokens, 16 / n_requests + 2, 11);
  Kernel kernel(*rig.rope, rig.cache.layout, pages, work);
  const auto composer = need(CudaComposer::create(rig.rope, rig.cache.layout, pages, 1U << 15));
  const double moved = static_cast<double>(kTokenBytes) * kTokens * n_requests;
  const double bytes = pinned ? moved : 2 * moved;
  const double ceiling = pinned ? rig.ceilings.to_device : rig.ceilings.device_copy;
  const int rounds = pinned ? std::max(20, rig.rounds / 4) : rig.rounds;
  nlohmann::json sweep;
  for (const std::uint32_t layers : {1U, 2U, 4U, 8U, 16U, 32U}) {
    kernel.set_layers_per_thread(layers);
    const Times times = measure(rounds / 4, [&](int round) { kernel.launch(round); });
    sweep[std::to_string(layers)] = figures(times, bytes, ceiling)["of_ceiling"];
  }
  kernel.set_layers_per_thread(kernel.planned_layers());
  const Times alone = measure(rounds, [&](int round) { kernel.launch(round); });
  const Times call =
      measure(rounds, [&](int round) { need(composer->compose(work.items(round), nullptr)); });
  return {{"tokens", kTokens * n_requests},
          {"bytes", moved},
          {"kernel", figures(alone, bytes, ceiling)},
          {"kernel_of_ceiling_by_layers_per_thread", sweep},
          {"call_on_device", figures(call, bytes, ceiling)},
          {"call_host", summary(call.host)},
          {"launch_to_end", summary(call.wall)}};
}

nlohmann::json capture(const Rig& rig) {
  constexpr std::uint32_t kRuns = 36;
  const auto capturer = need(CudaCapturer::create(rig.rope, kernels::as_const(rig.cache.layout),
                                                  {KvCodec::kBf16, 1024, kRuns, 2}));
  std::vector<std::vector<std::uint32_t>> rows(kRuns * 8);
  std::vector<CaptureRun> runs;
  for (std::uint32_t i = 0; i < rows.size(); ++i) {
    rows[i].resize(kFactTokens);
    std::iota(rows[i].begin(), rows[i].end(), i * kFactTokens);
    runs.push_back({100, rows[i]});
  }
  // Each on an idle device, from another eighth of the cache. The copy to the host has a stream of
  // its own; what is given back is zeroed, which no step waits for.
  std::vector<double> to_host;
  std::vector<double> release;
  for (int round = 0; round < rig.rounds / 4 + 20; ++round) {
    need(cudaDeviceSynchronize());
    const auto first = static_cast<std::size_t>(round % 8) * kRuns;
    Stopwatch watch;
    const auto batch = need(capturer->start(std::span(runs).subspan(first, kRuns), nullptr));
    need(capturer->wait(batch));
    to_host.push_back(1e3 * watch.elapsed_ms());
    watch.restart();
    capturer->release(batch);
    release.push_back(1e3 * watch.elapsed_ms());
  }
  const double bytes = static_cast<double>(kTokenBytes) * kRuns * kFactTokens;
  nlohmann::json arrived = summary(to_host);
  arrived["GBps"] = bytes / median(to_host) / 1e3;
  arrived["of_ceiling"] = bytes / median(to_host) * 1e6 / rig.ceilings.to_host;
  return {{"tokens", kRuns * kFactTokens},
          {"bytes", bytes},
          {"call_to_rows_on_host", arrived},
          {"zeroed_and_given_back", summary(release)}};
}

}  // namespace

nlohmann::json bench_compose(int rounds, const Ceilings& ceilings) {
  const Cache cache;
  const auto rope = need(cuda::DeviceRope::upload(llama_rope()));
  const Rig rig{cache, rope, ceilings, rounds};
  nlohmann::json out = {{"shape", "Llama-3.1-8B: 32 layers, 8 kv heads, 128; bf16 to bf16"}};
  {
    // Over 1,000 tokens for each of the sets, and over the L2 cache many times.
    const cuda::Buffer arena =
        random_buffer(cuda::MemoryKind::kDevice, kTokenBytes * (kCacheTokens + 4096));
    out["gpu_1x1000"] = compose_from(rig, arena, false, 1);
    out["gpu_4x1000"] = compose_from(rig, arena, false, 4);
    out["gpu_16x1000"] = compose_from(rig, arena, false, 16);
  }
  {
    const cuda::Buffer arena =
        random_buffer(cuda::MemoryKind::kPinned, kTokenBytes * (kCacheTokens / 4));
    out["pinned_1x1000"] = compose_from(rig, arena, true, 1);
  }
  out["capture"] = capture(rig);
  return out;
}

}  // namespace inferscale::bench
