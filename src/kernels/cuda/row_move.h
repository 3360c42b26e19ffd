#pragma once

#include <cstddef>
#include <cstdint>

#include "inferscale/kv_kernels.h"

/// The one move behind compose and capture on a device: rows of keys and values between packed
/// memory (pages, records) and an engine's cache, keys turned on the way. Everything here is plain
/// data, copied to the device as a kernel's argument.
namespace inferscale::cuda {

/// Where one token stands on both sides.
struct MoveToken {
  std::uint64_t packed = 0;  ///< compose: address of its page; capture: index of its PackedRun
  std::uint32_t row = 0;     ///< of the cache
  std::uint32_t place = 0;   ///< compose: position in the lower 24 bits, place in its page above
};
inline constexpr std::uint32_t kPositionBits = 24;

/// Capture: a run of consecutive tokens and where its layers lie, K and V of a layer apart.
struct PackedRun {
  std::uint64_t address = 0;      ///< K of layer 0, token 0
  std::uint64_t layer_bytes = 0;  ///< from one layer to the next
  std::uint64_t v_offset = 0;     ///< from a layer's K to its V
  std::uint64_t k_scales = 0;     ///< from a layer's K to the scales of its K, of a scaled codec
  std::uint64_t v_scales = 0;
  std::uint32_t first_token = 0;  ///< its first token's index in the table of tokens
  std::uint32_t first_position = 0;
};

/// Bytes from one row, head or block to the next.
struct MoveStrides {
  std::uint64_t row = 0;
  std::uint64_t head = 0;
  std::uint64_t block = 0;
};

/// A move of `n_tokens` tokens, all layers. All pointers are the device's.
struct RowMoves {
  const MoveToken* tokens = nullptr;
  const PackedRun* runs = nullptr;     ///< capture only
  std::byte* const* layers = nullptr;  ///< [2 n_layers]: the cache's K pointers, then its V
  const float* cos = nullptr;          ///< [positions][pairs]
  const float* sin = nullptr;
  /// [n_layers][n_heads][dim_k] that keys of the packed side lack, or null
  const float* key_bias = nullptr;
  std::uint32_t n_tokens = 0;
  std::uint32_t n_layers = 0;
  std::uint32_t n_heads = 0;
  std::uint32_t dim_k = 0;
  std::uint32_t dim_v = 0;
  std::uint32_t pairs = 0;  ///< rotary_dim / 2
  std::uint32_t rows_per_block = 0;
  MoveStrides k;
  MoveStrides v;
  std::uint64_t packed_layer_bytes = 0;  ///< compose: as PackedRun's, of every page
  std::uint64_t packed_v_offset = 0;
  std::uint64_t packed_k_scales = 0;
  std::uint64_t packed_v_scales = 0;
  std::uint64_t k_token_bytes = 0;  ///< packed side: from one token to the next
  std::uint64_t v_token_bytes = 0;
  std::uint64_t scale_token_bytes = 0;  ///< of K or V; 0 where the codec has no scales
  // How the work is cut; set by `plan_moves`.
  std::uint32_t k_units = 0;  ///< of a head: what one thread moves of a layer
  std::uint32_t v_units = 0;
  std::uint32_t units = 0;  ///< threads for a token and a slice of its layers
  std::uint32_t layers_per_thread = 0;
  std::uint32_t slices = 0;
};

/// Which kernel does it.
struct MoveKind {
  KvCodec packed_codec = KvCodec::kF16;
  KvCodec cache_codec = KvCodec::kF16;
  RopePairing pairing = RopePairing::kAdjacent;
  bool capture = false;  ///< cache to packed, keys turned back; else packed to cache
  bool wide = false;     ///< 16 bytes at a time; set by `plan_moves`
};

/// Whether heads are quantised: then a warp takes a head, instead of what `plan_moves` cuts.
[[nodiscard]] inline bool quantises(const MoveKind& kind) {
  return kind.capture && codec_is_scaled(kind.packed_codec);
}

/// Chooses 16-byte accesses (8 bytes of a scaled codec's elements) if the shape, all strides and
/// all addresses allow them (pages and runs start at multiples of 16), and cuts the work. `layers`
/// are the cache's pointers, on the host. Errors: kUnsupported (elements of a head that are not
/// contiguous, over 2^31 threads), kInvalidArgument (a codec that is not known).
[[nodiscard]] Status plan_moves(const ConstCacheLayout& cache, const RopeTable& table,
                                std::uint32_t max_tokens, RowMoves* moves, MoveKind* kind);

/// One launch, in stream order, for all of it; none when there are no tokens. Reads the tables when
/// the stream gets there. Errors: those of the launch.
[[nodiscard]] Status launch_moves(const RowMoves& moves, const MoveKind& kind, void* stream);

/// The same work by the same code, one thread's share after the other, on the host: all pointers
/// are the host's. For tests on machines without a device.
void run_moves_on_host(const RowMoves& moves, const MoveKind& kind);

}  // namespace inferscale::cuda
