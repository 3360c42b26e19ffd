#include <algorithm>
#include <chrono>
#include <random>

#include "cuda/cuda_bench.h"
#include "kernels/cuda/vector_scan.h"

namespace inferscale::bench {
namespace {

constexpr std::size_t kDim = 384;
constexpr std::size_t kHits = 10;

std::vector<float> random_vectors(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-0.1F, 0.1F);  // quicker than normal, as good here
  std::vector<float> vectors(count * kDim);
  for (float& value : vectors) {
    value = uniform(random);
  }
  return vectors;
}

nlohmann::json on_device(const std::vector<float>& vectors, const std::vector<float>& queries,
                         KvCodec dtype, int rounds) {
  const auto count = static_cast<std::uint32_t>(vectors.size() / kDim);
  // Copies of the vectors next to each other, so that small sets do not stay in the L2 cache.
  const std::uint32_t copies = count < 100000 ? 16 : 1;
  const auto scan =
      need(CudaVectorScan::create({kDim, dtype, std::uint64_t{count} * copies, 1, 64}));
  for (std::uint32_t copy = 0; copy < copies; ++copy) {
    need(scan->write(std::uint64_t{count} * copy, vectors));
  }
  const std::size_t n_queries = queries.size() / kDim;
  const auto search = [&](int round) {
    const ScanScope scope{std::uint64_t{count} * (static_cast<std::uint32_t>(round) % copies),
                          count};
    const auto query = static_cast<std::size_t>(round) % n_queries;
    need(scan->start(std::span(queries).subspan(query * kDim, kDim), {&scope, 1}, kHits, nullptr));
  };
  const Times times = measure(rounds, search, [&] { (void)need(scan->finish()); });
  const double bytes = static_cast<double>(vectors.size() * codec_element_bytes(dtype));
  return {{"device", summary(times.device)},
          {"start_to_hits", summary(times.wall)},
          {"GBps", bytes / median(times.device) / 1e3}};
}

nlohmann::json on_cpu(const std::vector<float>& vectors, const std::vector<float>& queries,
                      int rounds) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto query = static_cast<std::size_t>(round) % (queries.size() / kDim);
    const auto begin = std::chrono::steady_clock::now();
    const auto hits =
        vector_scan(vectors, kDim, std::span(queries).subspan(query * kDim, kDim), kHits);
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
    need(hits.size() == kHits ? Status() : internal_error("too few hits"));
  }
  return summary(times);
}

// How many of the hits of the CPU's scan the device's scan of f16 vectors has.
double recall(const std::vector<float>& vectors, const std::vector<float>& queries, KvCodec dtype) {
  const auto count = static_cast<std::uint32_t>(vectors.size() / kDim);
  const auto scan = need(CudaVectorScan::create({kDim, dtype, count, 1, 64}));
  need(scan->write(0, vectors));
  std::size_t found = 0;
  std::size_t all = 0;
  for (std::size_t query = 0; query < queries.size() / kDim; ++query) {
    const auto own = std::span(queries).subspan(query * kDim, kDim);
    const ScanScope scope{0, count};
    need(scan->start(own, {&scope, 1}, kHits, nullptr));
    const auto hits = need(scan->finish());
    for (const ScanHit& want : vector_scan(vectors, kDim, own, kHits)) {
      ++all;
      found += std::any_of(hits[0].begin(), hits[0].end(),
                           [&](const ScanHit& hit) { return hit.index == want.index; })
                   ? 1
                   : 0;
    }
  }
  return static_cast<double>(found) / static_cast<double>(all);
}

}  // namespace

nlohmann::json bench_scan(int rounds) {
  nlohmann::json out = {{"dim", kDim}, {"k", kHits}};
  const auto queries = random_vectors(16, 2);
  for (const std::size_t count : {10000U, 100000U, 1000000U}) {
    const auto vectors = random_vectors(count, 1);
    const int cpu_rounds = count > 100000 ? 5 : 20;
    nlohmann::json& own = out[std::to_string(count)];
    own["f32"] = on_device(vectors, queries, KvCodec::kF32, rounds);
    own["f16"] = on_device(vectors, queries, KvCodec::kF16, rounds);
    own["cpu_f32"] = on_cpu(vectors, queries, cpu_rounds);
    if (count <= 100000) {
      own["f32"]["recall"] = recall(vectors, queries, KvCodec::kF32);
      own["f16"]["recall"] = recall(vectors, queries, KvCodec::kF16);
    }
  }
  return out;
}

}  // namespace inferscale::bench
