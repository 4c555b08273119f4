// The part of cuda_fp16.h that the kernels use, for the host's compiler.
#pragma once

#include "cuda_runtime.h"

struct __half {
  unsigned short bits;
};
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }

// As a float32 the bits below the sign are the half's value over 2^112, denormal or not.
inline float __half2float(__half half) {
  const unsigned magnitude = half.bits & 0x7FFFu, sign = (half.bits & 0x8000u) << 16;
  if (magnitude >= 0x7C00u) return __uint_as_float(sign | 0x7F800000u | magnitude << 13);
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f));
}
