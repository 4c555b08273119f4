// Zero vectors, and moving lanes.
#pragma once

#include "xpu_sim/kernel/simd/types.h"

template <class T = int32x16_t>
XPU_SIM_SIMD T vzero() {
  return T{};
}
XPU_SIM_SIMD int32x16_t vset_zero_int() { return int32x16_t{}; }
XPU_SIM_SIMD float32x16_t vset_zero() { return float32x16_t{}; }

// Logical right shift of the whole register by a multiple of 32 bits: lane i becomes lane i + bits / 32.
XPU_SIM_SIMD int32x16_t vsrlp_int32x16(int bits, int32x16_t v) {
  int32x16_t out = {};
  const int by = bits / 32;
  for (int i = 0; i + by < 16; ++i) out[i] = v[i + by];
  return out;
}
XPU_SIM_SIMD float32x16_t vsrlp_float32x16(int bits, float32x16_t v) {
  return reinterpret_cast<float32x16_t>(vsrlp_int32x16(bits, reinterpret_cast<int32x16_t>(v)));
}

// The lane whose bit is set in the mask (one bit, not an index).
XPU_SIM_SIMD int vextract_int32x16(int32x16_t v, int mask = 1) {
  return v[__builtin_ctz(static_cast<unsigned>(mask)) & 15];
}
XPU_SIM_SIMD float vextract_float32x16(float32x16_t v, int mask = 1) {
  return v[__builtin_ctz(static_cast<unsigned>(mask)) & 15];
}

// Within each quarter of four lanes: the two low results come from a, the two high ones from b, each chosen by two bits
// of the pattern.
XPU_SIM_SIMD float32x16_t vshuffle2_float32x16(int pattern, float32x16_t a, float32x16_t b) {
  float32x16_t out = {};
  for (int i = 0; i < 16; ++i) {
    const float32x16_t& from = i % 4 < 2 ? a : b;
    out[i] = from[(i & ~3) + (pattern >> (2 * (i % 4)) & 3)];
  }
  return out;
}
