// Zero vectors, and moving lanes.
#pragma once

#include "xpu_sim/kernel/simd/types.h"

// T is a vector, or the type of its elements: vzero<int>() is an int32x16_t.
template <class T = int32x16_t>
XPU_SIM_SIMD xpu_sim::detail::VectorOf<T> vzero() {
  return xpu_sim::detail::VectorOf<T>{};
}
XPU_SIM_SIMD int32x16_t vset_zero_int() { return int32x16_t{}; }
XPU_SIM_SIMD float32x16_t vset_zero() { return float32x16_t{}; }

namespace xpu_sim::detail {

template <class V>
XPU_SIM_SIMD V shift_register(int bits, const V& v) {
  constexpr int kBits = 8 * sizeof(ElementOf<V>);
  V out = {};
  for (int i = 0, from = bits / kBits; from < Lanes<V>::count; ++i, ++from) set_lane(&out, i, lane(v, from));
  return out;
}

template <class V>
XPU_SIM_SIMD V shuffle2(int pattern, const V& a, const V& b) {
  V out = {};
  for (int i = 0; i < Lanes<V>::count; ++i) {
    set_lane(&out, i, lane(i % 4 < 2 ? a : b, (i & ~3) + (pattern >> (2 * (i % 4)) & 3)));
  }
  return out;
}

}  // namespace xpu_sim::detail

// vsrlp: logical right shift of the whole register by a multiple of a lane's bits: lane i becomes lane
// i + bits / (bits of a lane).
// vextract: the lane whose bit is set in the mask (one bit, not an index).
// vshuffle2: within each four lanes, the two low results come from a, the two high ones from b, each chosen by two bits
// of the pattern. With one vector, that is both. With nothing else, the lanes of each pair change places.
#define XPU_SIM_MOVES(V, T, M)                                                                                  \
  XPU_SIM_SIMD V##_t vsrlp_##V(int bits, V##_t v) { return ::xpu_sim::detail::shift_register(bits, v); }        \
  XPU_SIM_SIMD T vextract_##V(V##_t v, M mask = 1) {                                                            \
    return ::xpu_sim::detail::lane(                                                                             \
        v, __builtin_ctzll(static_cast<unsigned long long>(mask)) % ::xpu_sim::detail::Lanes<V##_t>::count);    \
  }                                                                                                             \
  XPU_SIM_SIMD V##_t vshuffle2_##V(int pattern, V##_t a, V##_t b) {                                             \
    return ::xpu_sim::detail::shuffle2(pattern, a, b);                                                          \
  }                                                                                                             \
  XPU_SIM_SIMD V##_t vshuffle2_##V(int pattern, V##_t v) { return ::xpu_sim::detail::shuffle2(pattern, v, v); } \
  XPU_SIM_SIMD V##_t vshuffle2_##V(V##_t v) { return ::xpu_sim::detail::shuffle2(0xB1, v, v); }
XPU_SIM_VECTORS(XPU_SIM_MOVES)
#undef XPU_SIM_MOVES
