#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// Elements of keys and values, for the device and, in the same steps, for the host. Arithmetic: a
// product rounded to fp32, then one fused multiply-add, then one rounding to the target's type; the
// same steps as the CPU's kernels take where the processor has a fused multiply-add.
#define INFERSCALE_HD __host__ __device__ __forceinline__

namespace inferscale::cuda {

struct Vec16 {
  std::uint32_t x, y, z, w;
};

INFERSCALE_HD Vec16 load16(const std::byte* from) {
#ifdef __CUDA_ARCH__
  // Without a hint: to evict first what was read once was measured to be slower.
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  return {v.x, v.y, v.z, v.w};
#else
  Vec16 v;
  std::memcpy(&v, from, sizeof(v));
  return v;
#endif
}

INFERSCALE_HD void store16(const Vec16& v, std::byte* to) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<uint4*>(to) = make_uint4(v.x, v.y, v.z, v.w);
#else
  std::memcpy(to, &v, sizeof(v));
#endif
}

struct Vec8 {
  std::uint32_t x, y;
};

INFERSCALE_HD Vec8 load8(const std::byte* from) {
#ifdef __CUDA_ARCH__
  const uint2 v = *reinterpret_cast<const uint2*>(from);
  return {v.x, v.y};
#else
  Vec8 v;
  std::memcpy(&v, from, sizeof(v));
  return v;
#endif
}

INFERSCALE_HD float times(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

INFERSCALE_HD float times_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

INFERSCALE_HD float plus(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

INFERSCALE_HD float quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

// Element types: one 32-bit word to floats and back.
struct HalfElement {
  static constexpr std::uint32_t kBytes = 2;
  static constexpr bool kScaled = false;
  static INFERSCALE_HD float load(std::uint16_t bits) {
    __half_raw raw;
    raw.x = bits;
    return __half2float(__half(raw));
  }
  static INFERSCALE_HD std::uint16_t store(float value) {
    return static_cast<__half_raw>(__float2half_rn(value)).x;
  }
};

struct Bfloat16Element {
  static constexpr std::uint32_t kBytes = 2;
  static constexpr bool kScaled = false;
  static INFERSCALE_HD float load(std::uint16_t bits) {
    __nv_bfloat16_raw raw;
    raw.x = bits;
    return __bfloat162float(__nv_bfloat16(raw));
  }
  static INFERSCALE_HD std::uint16_t store(float value) {
    return static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(value)).x;
  }
};

struct FloatElement {
  static constexpr std::uint32_t kBytes = 4;
  static constexpr bool kScaled = false;
};

INFERSCALE_HD float float_of(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

INFERSCALE_HD std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Of scaled codecs (kernels/quantized.h): what the scale is multiplied with, and the element that a
// quotient of value and scale becomes.
struct Q8Element {
  static constexpr std::uint32_t kBytes = 1;
  static constexpr bool kScaled = true;
  static INFERSCALE_HD float load(std::uint8_t bits) {
    return static_cast<float>(static_cast<std::int8_t>(bits));
  }
  static INFERSCALE_HD std::uint8_t store(float quotient) {
    return static_cast<std::uint8_t>(static_cast<std::int8_t>(rintf(quotient)));
  }
};

struct E4m3Element {
  static constexpr std::uint32_t kBytes = 1;
  static constexpr bool kScaled = true;
  static INFERSCALE_HD float load(std::uint8_t bits) {
    const std::uint32_t sign = (bits & 0x80U) << 24;
    const std::uint32_t magnitude = bits & 0x7FU;
    const float value = magnitude < 8 ? times(static_cast<float>(magnitude), 0x1p-9F)
                                      : float_of((magnitude << 20) + (120U << 23));
    return float_of(bits_of(value) | sign);
  }
  static INFERSCALE_HD std::uint8_t store(float quotient) {
    const std::uint32_t bits = bits_of(quotient);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    std::uint32_t element = 0;
    if (magnitude < (127U - 6U) << 23) {
      element = static_cast<std::uint32_t>(rintf(times(float_of(magnitude), 512.0F)));
    } else {
      element = ((magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
      element = element > 0x7EU ? 0x7EU : element;
    }
    return static_cast<std::uint8_t>(element | (bits >> 24 & 0x80U));
  }
};

// Eight elements as they lie in memory: 16 bytes, or 32 of floats.
template <class E, bool kScaled = E::kScaled>
struct Eight {
  Vec16 words[E::kBytes / 2];

  INFERSCALE_HD void load(const std::byte* from) {
    for (std::uint32_t i = 0; i < E::kBytes / 2; ++i) {
      words[i] = load16(from + 16 * i);
    }
  }
  INFERSCALE_HD void store(std::byte* to) const {
    for (std::uint32_t i = 0; i < E::kBytes / 2; ++i) {
      store16(words[i], to + 16 * i);
    }
  }
  INFERSCALE_HD void unpack(float* out) const {
    if constexpr (E::kBytes == 4) {
      for (std::uint32_t i = 0; i < 2; ++i) {
        out[4 * i] = float_of(words[i].x);
        out[4 * i + 1] = float_of(words[i].y);
        out[4 * i + 2] = float_of(words[i].z);
        out[4 * i + 3] = float_of(words[i].w);
      }
    } else {
      const std::uint32_t w[4] = {words[0].x, words[0].y, words[0].z, words[0].w};
      for (std::uint32_t i = 0; i < 4; ++i) {
        out[2 * i] = E::load(static_cast<std::uint16_t>(w[i] & 0xFFFFU));
        out[2 * i + 1] = E::load(static_cast<std::uint16_t>(w[i] >> 16));
      }
    }
  }
  INFERSCALE_HD void pack(const float* in) {
    if constexpr (E::kBytes == 4) {
      for (std::uint32_t i = 0; i < 2; ++i) {
        words[i] = {bits_of(in[4 * i]), bits_of(in[4 * i + 1]), bits_of(in[4 * i + 2]),
                    bits_of(in[4 * i + 3])};
      }
    } else {
      std::uint32_t w[4];
      for (std::uint32_t i = 0; i < 4; ++i) {
        w[i] = std::uint32_t{E::store(in[2 * i])} | std::uint32_t{E::store(in[2 * i + 1])} << 16;
      }
      words[0] = {w[0], w[1], w[2], w[3]};
    }
  }
};

// Eight elements under one scale, which is set after they were loaded; only read.
template <class E>
struct Eight<E, true> {
  Vec8 words{};
  float scale = 0;

  INFERSCALE_HD void load(const std::byte* from) { words = load8(from); }
  INFERSCALE_HD void unpack(float* out) const {
    for (std::uint32_t i = 0; i < 4; ++i) {
      out[i] = times(E::load(static_cast<std::uint8_t>(words.x >> 8 * i)), scale);
      out[i + 4] = times(E::load(static_cast<std::uint8_t>(words.y >> 8 * i)), scale);
    }
  }
};

template <class S, class D>
INFERSCALE_HD Eight<D> converted(const Eight<S>& from) {
  if constexpr (std::is_same_v<S, D>) {
    return from;
  } else {
    float values[8];
    from.unpack(values);
    Eight<D> to;
    to.pack(values);
    return to;
  }
}

}  // namespace inferscale::cuda
