#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "inferscale/status.h"
#include "kernels/cuda/device.h"

namespace inferscale::bench {

/// Ends the program with a message unless the status is ok.
void need(const Status& status);
void need(cudaError_t error);
template <typename T>
T need(Result<T> result) {
  need(result.status());
  return std::move(result).value();
}

/// Times of many runs, in microseconds.
struct Times {
  std::vector<double> device;  ///< from the end of what stood before the work to the end of it
  std::vector<double> host;    ///< the calls that put it into the stream
  std::vector<double> wall;    ///< from the first call to the end of the work, device idle before
};

/// Runs `work` twice in each of `rounds` rounds, and in a tenth as many before that do not count:
/// once behind other work, for `device`, and once on an idle device. It is given another number
/// each time and puts its work into the default stream; `after` follows when it is done and counts
/// for `wall` alone.
Times measure(
    int rounds, const std::function<void(int)>& work, const std::function<void()>& after = [] {});

/// {"median_us": .., "p95_us": ..}
nlohmann::json summary(std::vector<double> values);
double median(std::vector<double> values);

/// `count` bf16 numbers about 0, over and over, in memory of the kind.
cuda::Buffer random_buffer(cuda::MemoryKind kind, std::size_t bytes);

/// Bandwidths that everything else is held against; bytes read and written counted for device
/// copies, bytes crossing once for PCIe.
struct Ceilings {
  double device_copy = 0;  ///< bytes per second
  double to_device = 0;
  double to_host = 0;
  nlohmann::json json;
};
Ceilings measure_ceilings(int rounds);

nlohmann::json bench_compose(int rounds, const Ceilings& ceilings);
nlohmann::json bench_scan(int rounds);

}  // namespace inferscale::bench
