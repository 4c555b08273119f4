// Vector types. GCC's are exactly what kernels expect: default-uninitialised, `= {0}`, v[i], reinterpret_cast.
#pragma once

#include <cstdint>

// A 64-byte vector is passed differently with and without AVX-512. None is passed: all functions here are inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

typedef int8_t int8x64_t __attribute__((vector_size(64)));
typedef uint8_t uint8x64_t __attribute__((vector_size(64)));
typedef int16_t int16x32_t __attribute__((vector_size(64)));
typedef uint16_t uint16x32_t __attribute__((vector_size(64)));
typedef int32_t int32x16_t __attribute__((vector_size(64)));
typedef uint32_t uint32x16_t __attribute__((vector_size(64)));
typedef float float32x16_t __attribute__((vector_size(64)));

// Halves by their bits: host compilers lack the arithmetic, which half.h does in float32.
struct float16x32_t {
  uint16x32_t bits;
};

#define XPU_SIM_SIMD inline __attribute__((always_inline))

namespace xpu_sim::detail {

// Lane i of the result is all ones where bit i of the mask is set.
XPU_SIM_SIMD int32x16_t lanes32(int mask) {
  const int32x16_t bit = {1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                          1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  return (mask & bit) != 0;
}

template <class V>
XPU_SIM_SIMD V select(int32x16_t take, V yes, V no) {
  return reinterpret_cast<V>((reinterpret_cast<int32x16_t>(yes) & take) | (reinterpret_cast<int32x16_t>(no) & ~take));
}

// Bit i is set where lane i is all ones.
XPU_SIM_SIMD int bitmap(int32x16_t lanes) {
  int bits = 0;
#if defined(__SSE2__)
  typedef float Quarter __attribute__((vector_size(16)));
  Quarter q[4];
  __builtin_memcpy(q, &lanes, sizeof q);
  for (int i = 0; i < 4; ++i) bits |= __builtin_ia32_movmskps(q[i]) << (4 * i);
#else
  for (int i = 0; i < 16; ++i) bits |= (lanes[i] & 1) << i;
#endif
  return bits;
}

}  // namespace xpu_sim::detail
