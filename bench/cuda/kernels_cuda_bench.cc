// Measures the kernels on a device against what the same device copies: JSON to --out or stdout.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>

#include "cuda/cuda_bench.h"

namespace inferscale::bench {
namespace {

double microseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace

void need(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "kernels_cuda_bench: %s\n", status.to_string().c_str());
    std::exit(1);
  }
}

void need(cudaError_t error) { need(cuda::status_of(error, "CUDA")); }

Times measure(int rounds, const std::function<void(int)>& work,
              const std::function<void()>& after) {
  // Something to do before the work, so that it is in the stream when its turn comes: the calls
  // take longer than the device. It also leaves nothing of an earlier round in the L2 cache.
  static const cuda::Buffer busy =
      need(cuda::Buffer::allocate(cuda::MemoryKind::kDevice, std::size_t{1} << 30));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  need(cudaEventCreate(&begin));
  need(cudaEventCreate(&end));
  Times times;
  const int warm_up = std::max(3, rounds / 10);
  for (int round = 0; round < rounds + warm_up; ++round) {
    need(cuda::zero_async(busy.data(), busy.size(), nullptr));
    need(cudaEventRecord(begin, nullptr));
    work(2 * round);
    need(cudaEventRecord(end, nullptr));
    need(cudaDeviceSynchronize());
    after();
    const auto start = std::chrono::steady_clock::now();
    work(2 * round + 1);
    const double host = microseconds_since(start);
    need(cudaDeviceSynchronize());
    after();
    const double wall = microseconds_since(start);
    float milliseconds = 0;
    need(cudaEventElapsedTime(&milliseconds, begin, end));
    if (round >= warm_up) {
      times.device.push_back(1000.0 * milliseconds);
      times.host.push_back(host);
      times.wall.push_back(wall);
    }
  }
  need(cudaEventDestroy(begin));
  need(cudaEventDestroy(end));
  return times;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{"median_us", values[values.size() / 2]}, {"p95_us", values[values.size() * 95 / 100]}};
}

cuda::Buffer random_buffer(cuda::MemoryKind kind, std::size_t bytes) {
  static const std::vector<std::uint16_t> pool = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> values(std::size_t{8} << 20);
    for (std::uint16_t& value : values) {
      value = static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, normal(random)) >> 16);
    }
    return values;
  }();
  cuda::Buffer buffer = need(cuda::Buffer::allocate(kind, bytes));
  for (std::size_t at = 0; at < bytes; at += pool.size() * 2) {
    need(cuda::copy_async(buffer.data() + at, pool.data(), std::min(bytes - at, pool.size() * 2),
                          nullptr));
  }
  need(cuda::synchronize(nullptr));
  return buffer;
}

Ceilings measure_ceilings(int rounds) {
  constexpr std::size_t kSize = std::size_t{1} << 30;
  constexpr std::size_t kHostSize = std::size_t{1} << 28;
  const cuda::Buffer from = random_buffer(cuda::MemoryKind::kDevice, kSize);
  const cuda::Buffer to = random_buffer(cuda::MemoryKind::kDevice, kSize);
  const cuda::Buffer host = random_buffer(cuda::MemoryKind::kPinned, kHostSize);
  const auto copy = [](std::byte* target, const std::byte* source, std::size_t size) {
    need(cudaMemcpyAsync(target, source, size, cudaMemcpyDefault, nullptr));
  };
  Ceilings c;
  const Times device = measure(rounds, [&](int) { copy(to.data(), from.data(), kSize); });
  // What a copy of as much as the composed 1,000 tokens reaches, between sets that rotate.
  constexpr std::size_t kSmall = std::size_t{1000} * 131072;
  const Times small = measure(rounds, [&](int round) {
    const std::size_t at = static_cast<std::size_t>(round % 8) * kSmall;
    copy(to.data() + at, from.data() + at, kSmall);
  });
  const Times in = measure(rounds / 4, [&](int) { copy(to.data(), host.data(), kHostSize); });
  const Times out = measure(rounds / 4, [&](int) { copy(host.data(), from.data(), kHostSize); });
  const auto rate = [](std::size_t bytes, const Times& times) {
    return static_cast<double>(bytes) / median(times.device) * 1e6;
  };
  c.device_copy = rate(2 * kSize, device);
  c.to_device = rate(kHostSize, in);
  c.to_host = rate(kHostSize, out);
  c.json = {{"device_copy_1GiB_GBps", c.device_copy / 1e9},
            {"device_copy_131MB_GBps", rate(2 * kSmall, small) / 1e9},
            {"device_copy_131MB", summary(small.device)},
            {"pcie_to_device_GBps", c.to_device / 1e9},
            {"pcie_to_host_GBps", c.to_host / 1e9}};
  return c;
}

}  // namespace inferscale::bench

int main(int argc, char** argv) {
  using namespace inferscale;
  std::string out;
  std::string only;
  int rounds = 200;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--out") {
      out = argv[i + 1];
    } else if (name == "--rounds") {
      rounds = std::max(20, std::atoi(argv[i + 1]));
    } else if (name == "--only") {
      only = argv[i + 1];
    }
  }
  const int device = bench::need(cuda::current_device());
  int driver = 0;
  int runtime = 0;
  bench::need(cudaDriverGetVersion(&driver));
  bench::need(cudaRuntimeGetVersion(&runtime));
  nlohmann::json result = {{"device", bench::need(cuda::device_name(device))},
                           {"cuda_driver", driver},
                           {"cuda_runtime", runtime},
                           {"rounds", rounds}};
  const bench::Ceilings ceilings = bench::measure_ceilings(rounds);
  result["ceilings"] = ceilings.json;
  if (only.empty() || only == "kv") {
    result["kv"] = bench::bench_compose(rounds, ceilings);
  }
  if (only.empty() || only == "scan") {
    result["vector_scan"] = bench::bench_scan(rounds);
  }
  if (out.empty()) {
    std::cout << result.dump(1) << "\n";
  } else {
    std::ofstream(out) << result.dump(1) << "\n";
  }
  return 0;
}
