#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/vector_scan_kernels.h"

namespace inferscale::cuda {
namespace {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kScoreThreads = 256;
constexpr std::uint32_t kRowsAtOnce = 4;  // vectors of which a warp has loads in flight
constexpr std::uint32_t kSelectThreads = 1024;
constexpr std::uint32_t kEverywhere = 0xFFFFFFFFU;

// Floats in the order of their bits; -0 counts as 0, as it does where floats are compared.
__device__ ScanKey key_of(float score, std::uint32_t index) {
  if (score != score) {
    return 0;
  }
  const std::uint32_t bits = __float_as_uint(score + 0.0F);
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return ScanKey{ordered} << 32 | (0xFFFFFFFFU - index);
}

// Which query a block works for: the last one whose first block is not behind it.
__device__ std::uint32_t query_of(const std::uint32_t* first_blocks, std::uint32_t n_queries,
                                  std::uint32_t block) {
  std::uint32_t low = 0;
  std::uint32_t high = n_queries;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (first_blocks[middle] <= block ? low : high) = middle;
  }
  return low;
}

// Sorts the first `count` keys, a power of two, in shared memory, the greatest first. All threads
// of the block take part. A warp's share of a step of up to 32 lies in 64 keys of its own: between
// two such steps the others need not be waited for.
template <std::uint32_t kThreads>
__device__ void sort_keys(ScanKey* keys, std::uint32_t count) {
  bool crossed = true;  // the step before went beyond a warp's own keys
  for (std::uint32_t size = 2; size <= count; size *= 2) {
    for (std::uint32_t stride = size / 2; stride > 0; stride /= 2) {
      const bool crosses = stride > kWarp;
      if (crosses || crossed) {
        __syncthreads();
      } else {
        __syncwarp();
      }
      crossed = crosses;
      for (std::uint32_t i = threadIdx.x; i < count / 2; i += kThreads) {
        const std::uint32_t low = 2 * i - (i & (stride - 1));
        const std::uint32_t high = low + stride;
        const bool falling = (low & size) == 0;
        const ScanKey a = keys[low];
        const ScanKey b = keys[high];
        if ((a < b) == falling) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

// Sixteen bytes of a vector times as much of the query.
struct FloatPiece {
  static constexpr std::uint32_t kElements = 4;
  static __device__ float dot(const std::byte* at, const float* query) {
    const float4 v = __ldg(reinterpret_cast<const float4*>(at));
    const float4 q = *reinterpret_cast<const float4*>(query);
    return fmaf(v.x, q.x, fmaf(v.y, q.y, fmaf(v.z, q.z, v.w * q.w)));
  }
};

struct HalfPiece {
  static constexpr std::uint32_t kElements = 8;
  static __device__ float dot(const std::byte* at, const float* query) {
    const uint4 raw = __ldg(reinterpret_cast<const uint4*>(at));
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    float sum = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const __half2 pair = *reinterpret_cast<const __half2*>(&words[i]);
      const float2 v = __half22float2(pair);
      sum = fmaf(v.x, query[2 * i], fmaf(v.y, query[2 * i + 1], sum));
    }
    return sum;
  }
};

// Each warp takes kRowsAtOnce vectors at a time; its lanes take pieces of them in turn. The order
// of additions depends on the length alone: equal vectors have equal scores.
template <class Piece>
__device__ void score_rows(const ScorePass& pass, std::uint32_t query, std::uint32_t first,
                           std::uint32_t count, const float* shared_query, ScanKey* keys) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t pieces = pass.row_elements / Piece::kElements;
  const std::size_t row_bytes = std::size_t{pieces} * 16;
  const std::byte* rows = pass.vectors + (pass.firsts[query] + first) * row_bytes;
  for (std::uint32_t at = threadIdx.x / kWarp * kRowsAtOnce; at < count;
       at += kScoreThreads / kWarp * kRowsAtOnce) {
    float sums[kRowsAtOnce] = {};
#pragma unroll 4
    for (std::uint32_t piece = lane; piece < pieces; piece += kWarp) {
      for (std::uint32_t r = 0; r < kRowsAtOnce; ++r) {
        const std::uint32_t row = min(at + r, count - 1);
        sums[r] += Piece::dot(rows + row * row_bytes + piece * 16,
                              shared_query + piece * Piece::kElements);
      }
    }
    for (std::uint32_t r = 0; r < kRowsAtOnce; ++r) {
      for (std::uint32_t step = kWarp / 2; step > 0; step /= 2) {
        sums[r] += __shfl_xor_sync(kEverywhere, sums[r], step);
      }
      if (lane == 0 && at + r < count) {
        keys[at + r] = key_of(sums[r], first + at + r);
      }
    }
  }
}

template <class Piece>
__global__ void __launch_bounds__(kScoreThreads)
    score_kernel(const __grid_constant__ ScorePass pass) {
  extern __shared__ float4 query_room[];
  __shared__ ScanKey keys[kManyPerBlock];
  auto* shared_query = reinterpret_cast<float*>(query_room);
  const std::uint32_t query = query_of(pass.first_blocks, pass.n_queries, blockIdx.x);
  const std::uint32_t first = (blockIdx.x - pass.first_blocks[query]) * pass.per_block;
  const std::uint32_t count = min(pass.per_block, pass.counts[query] - first);
  for (std::uint32_t i = threadIdx.x; i < pass.row_elements; i += kScoreThreads) {
    shared_query[i] = pass.queries[std::size_t{query} * pass.row_elements + i];
  }
  for (std::uint32_t i = threadIdx.x; i < pass.per_block; i += kScoreThreads) {
    keys[i] = 0;
  }
  __syncthreads();
  score_rows<Piece>(pass, query, first, count, shared_query, keys);
  sort_keys<kScoreThreads>(keys, pass.per_block);
  for (std::uint32_t i = threadIdx.x; i < pass.kept; i += kScoreThreads) {
    pass.out[std::size_t{blockIdx.x} * pass.kept + i] = keys[i];
  }
}

__global__ void __launch_bounds__(kSelectThreads)
    select_kernel(const __grid_constant__ SelectPass pass) {
  __shared__ ScanKey keys[kSortedPerBlock];
  const std::uint32_t query = query_of(pass.first_blocks, pass.n_queries, blockIdx.x);
  const std::uint64_t base = std::uint64_t{pass.in_blocks[query]} * pass.in_kept;
  const std::uint64_t end = std::uint64_t{pass.in_blocks[query + 1]} * pass.in_kept;
  const std::uint64_t first =
      base + std::uint64_t{blockIdx.x - pass.first_blocks[query]} * kSortedPerBlock;
  for (std::uint32_t i = threadIdx.x; i < kSortedPerBlock; i += kSelectThreads) {
    keys[i] = first + i < end ? pass.in[first + i] : 0;
  }
  const auto count = static_cast<std::uint32_t>(min(end - first, std::uint64_t{kSortedPerBlock}));
  std::uint32_t sorted = 2;
  while (sorted < count) {
    sorted *= 2;
  }
  sort_keys<kSelectThreads>(keys, sorted);
  for (std::uint32_t i = threadIdx.x; i < pass.kept; i += kSelectThreads) {
    pass.out[std::size_t{blockIdx.x} * pass.kept + i] = keys[i];
  }
}

}  // namespace

Status launch_scores(const ScorePass& pass, KvCodec dtype, void* stream) {
  if (pass.n_blocks == 0) {
    return Status();
  }
  const auto in = static_cast<cudaStream_t>(stream);
  const std::size_t shared = pass.row_elements * sizeof(float);
  if (dtype == KvCodec::kF16) {
    score_kernel<HalfPiece><<<pass.n_blocks, kScoreThreads, shared, in>>>(pass);
    return status_of(cudaGetLastError(), "launching the scores of a vector scan");
  }
  score_kernel<FloatPiece><<<pass.n_blocks, kScoreThreads, shared, in>>>(pass);
  return status_of(cudaGetLastError(), "launching the scores of a vector scan");
}

Status launch_select(const SelectPass& pass, void* stream) {
  select_kernel<<<pass.n_blocks, kSelectThreads, 0, static_cast<cudaStream_t>(stream)>>>(pass);
  return status_of(cudaGetLastError(), "launching the selection of a vector scan");
}

ScanHit hit_of(ScanKey key) {
  const auto ordered = static_cast<std::uint32_t>(key >> 32);
  const std::uint32_t bits = (ordered & 0x80000000U) != 0 ? ordered & 0x7FFFFFFFU : ~ordered;
  ScanHit hit;
  hit.index = 0xFFFFFFFFU - static_cast<std::uint32_t>(key);
  hit.score = __builtin_bit_cast(float, bits);
  return hit;
}

}  // namespace inferscale::cuda
