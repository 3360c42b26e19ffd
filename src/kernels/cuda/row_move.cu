#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/row_move_narrow.cuh"
#include "kernels/cuda/row_move_wide.cuh"
#include "kernels/cuda/row_quantise.cuh"

namespace inferscale::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;

template <class P, class C, bool kAdjacent, bool kCapture, bool kBiased>
__global__ void __launch_bounds__(kThreads) wide_kernel(const __grid_constant__ RowMoves moves) {
  move_wide<P, C, kAdjacent, kCapture, kBiased>(moves, blockIdx.x * kThreads + threadIdx.x);
}

template <bool kCapture, bool kBiased>
__global__ void __launch_bounds__(kThreads)
    narrow_kernel(const __grid_constant__ RowMoves moves, const __grid_constant__ MoveKind kind) {
  move_narrow<kCapture, kBiased>(moves, kind, blockIdx.x * kThreads + threadIdx.x);
}

struct Warp {
  static constexpr std::uint32_t kSize = 32;
  std::uint32_t lane;

  [[nodiscard]] INFERSCALE_HD std::uint32_t max(std::uint32_t value) const {
#ifdef __CUDA_ARCH__
    for (std::uint32_t offset = kSize / 2; offset > 0; offset /= 2) {
      const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, value, static_cast<int>(offset));
      value = other > value ? other : value;
    }
#endif
    return value;
  }
};

// One thread does all.
struct Alone {
  static constexpr std::uint32_t kSize = 1;
  std::uint32_t lane = 0;

  [[nodiscard]] INFERSCALE_HD std::uint32_t max(std::uint32_t value) const { return value; }
};

// A warp for each head: all of its threads stay, or none.
template <bool kBiased>
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(const __grid_constant__ RowMoves moves, const __grid_constant__ MoveKind kind) {
  const std::uint64_t head = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) / Warp::kSize;
  if (head < heads_of(moves)) {
    quantise_head<kBiased>(moves, kind, head, Warp{threadIdx.x % Warp::kSize});
  }
}

std::uint32_t threads_of(const RowMoves& moves) {
  return moves.n_tokens * moves.slices * moves.units;  // plan_moves has seen to it that it fits
}

// On the device.
struct Launcher {
  const RowMoves& moves;
  cudaStream_t stream;

  [[nodiscard]] std::uint32_t blocks() const {
    return (threads_of(moves) + kThreads - 1) / kThreads;
  }
  template <class P, class C, bool kAdjacent, bool kCapture, bool kBiased>
  Status wide() const {
    wide_kernel<P, C, kAdjacent, kCapture, kBiased><<<blocks(), kThreads, 0, stream>>>(moves);
    return status_of(cudaGetLastError(), "launching the move of rows");
  }
  template <bool kCapture, bool kBiased>
  Status narrow(const MoveKind& kind) const {
    narrow_kernel<kCapture, kBiased><<<blocks(), kThreads, 0, stream>>>(moves, kind);
    return status_of(cudaGetLastError(), "launching the move of rows");
  }
  template <bool kBiased>
  [[nodiscard]] Status quantise(const MoveKind& kind) const {
    const std::uint64_t threads = heads_of(moves) * Warp::kSize;
    const auto blocks = static_cast<std::uint32_t>((threads + kThreads - 1) / kThreads);
    quantise_kernel<kBiased><<<blocks, kThreads, 0, stream>>>(moves, kind);
    return status_of(cudaGetLastError(), "launching the quantisation of rows");
  }
};

// On the host.
struct Loop {
  const RowMoves& moves;

  template <class P, class C, bool kAdjacent, bool kCapture, bool kBiased>
  Status wide() const {
    for (std::uint32_t thread = 0; thread < threads_of(moves); ++thread) {
      move_wide<P, C, kAdjacent, kCapture, kBiased>(moves, thread);
    }
    return Status();
  }
  template <bool kCapture, bool kBiased>
  Status narrow(const MoveKind& kind) const {
    for (std::uint32_t thread = 0; thread < threads_of(moves); ++thread) {
      move_narrow<kCapture, kBiased>(moves, kind, thread);
    }
    return Status();
  }
  template <bool kBiased>
  [[nodiscard]] Status quantise(const MoveKind& kind) const {
    for (std::uint64_t head = 0; head < heads_of(moves); ++head) {
      quantise_head<kBiased>(moves, kind, head, Alone());
    }
    return Status();
  }
};

template <class P, class C, bool kBiased, class Executor>
Status run_wide(const MoveKind& kind, const Executor& executor) {
  const bool adjacent = kind.pairing == RopePairing::kAdjacent;
  if constexpr (!P::kScaled) {
    if (kind.capture) {
      return adjacent ? executor.template wide<P, C, true, true, kBiased>()
                      : executor.template wide<P, C, false, true, kBiased>();
    }
  }
  return adjacent ? executor.template wide<P, C, true, false, kBiased>()
                  : executor.template wide<P, C, false, false, kBiased>();
}

template <class P, bool kBiased, class Executor>
Status run_from(const MoveKind& kind, const Executor& executor) {
  switch (kind.cache_codec) {
    case KvCodec::kF16:
      return run_wide<P, HalfElement, kBiased>(kind, executor);
    case KvCodec::kBf16:
      return run_wide<P, Bfloat16Element, kBiased>(kind, executor);
    default:
      return run_wide<P, FloatElement, kBiased>(kind, executor);
  }
}

template <bool kBiased, class Executor>
Status run_kind(const MoveKind& kind, const Executor& executor) {
  if (quantises(kind)) {
    return executor.template quantise<kBiased>(kind);
  }
  if (!kind.wide) {
    return kind.capture ? executor.template narrow<true, kBiased>(kind)
                        : executor.template narrow<false, kBiased>(kind);
  }
  switch (kind.packed_codec) {
    case KvCodec::kF16:
      return run_from<HalfElement, kBiased>(kind, executor);
    case KvCodec::kBf16:
      return run_from<Bfloat16Element, kBiased>(kind, executor);
    case KvCodec::kQ8:
      return run_from<Q8Element, kBiased>(kind, executor);
    case KvCodec::kFp8E4m3:
      return run_from<E4m3Element, kBiased>(kind, executor);
    default:
      return run_from<FloatElement, kBiased>(kind, executor);
  }
}

template <class Executor>
Status run(const MoveKind& kind, const Executor& executor) {
  return executor.moves.key_bias == nullptr ? run_kind<false>(kind, executor)
                                            : run_kind<true>(kind, executor);
}

}  // namespace

Status launch_moves(const RowMoves& moves, const MoveKind& kind, void* stream) {
  if (moves.n_tokens == 0) {
    return Status();
  }
  return run(kind, Launcher{moves, static_cast<cudaStream_t>(stream)});
}

void run_moves_on_host(const RowMoves& moves, const MoveKind& kind) {
  (void)run(kind, Loop{moves});
}

}  // namespace inferscale::cuda
