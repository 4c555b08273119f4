// 16-bit floats to float32; exact.
#pragma once

#include "specdec/platform.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace specdec {

SPECDEC_HD float bf16_to_f32(uint16_t bits) { return f32_from_bits(static_cast<uint32_t>(bits) << 16); }

SPECDEC_HD float f16_to_f32(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));  // one instruction
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu, fraction = bits & 0x3FFu;
  if (exponent == 0) {  // zero or denormal: fraction * 2^-24 is a normal float32
    const float magnitude = mul_rn(static_cast<float>(fraction), 0x1p-24f);
    return f32_from_bits(f32_bits(magnitude) | sign);
  }
  // Infinity and NaN keep the largest exponent; others change bias from 15 to 127.
  const uint32_t widened = exponent == 31 ? 255u : exponent + 112u;
  return f32_from_bits(sign | widened << 23 | fraction << 13);
#endif
}

}  // namespace specdec
