// Constant vectors, and moving lanes.
#pragma once

#include "xpu_sim/kernel/simd/types.h"

// T is a vector, or the type of its elements: vzero<int>() is an int32x16_t.
template <class T = int32x16_t>
XPU_SIM_SIMD xpu_sim::detail::VectorOf<T> vzero() {
  return xpu_sim::detail::VectorOf<T>{};
}
XPU_SIM_SIMD int32x16_t vset_zero_int() { return int32x16_t{}; }
XPU_SIM_SIMD float32x16_t vset_zero() { return float32x16_t{}; }
XPU_SIM_SIMD float16x32_t vset_zero_fp16() { return float16x32_t{}; }
XPU_SIM_SIMD float32x16_t vset_one() { return float32x16_t(1.0f); }

// The vector of a type of elements: VType<float> may be used as one, and VType<float>::type is one.
template <class T>
struct VType : xpu_sim::detail::VectorOf<T> {
  using type = xpu_sim::detail::VectorOf<T>;
  using type::type;
  VType() = default;
  XPU_SIM_SIMD VType(const type& v) : type(v) {}
};
template <class T>
struct simd_type_trait {
  using type = xpu_sim::detail::VectorOf<T>;
  using element_type = xpu_sim::detail::ElementOf<T>;
  static constexpr int lanes = xpu_sim::detail::Lanes<T>::count;
};

namespace xpu_sim::detail {

template <class V>
XPU_SIM_SIMD V shift_register(int bits, const V& v) {
  constexpr int kBits = 8 * sizeof(ElementOf<V>);
  V out = {};
  for (int i = 0, from = bits / kBits; from < Lanes<V>::count; ++i, ++from) out.raw[i] = v.raw[from];
  return out;
}

template <class V>
XPU_SIM_SIMD V shuffle2(int pattern, const V& a, const V& b) {
  V out = {};
  for (int i = 0; i < Lanes<V>::count; ++i) {
    out.raw[i] = (i % 4 < 2 ? a : b).raw[(i & ~3) + (pattern >> (2 * (i % 4)) & 3)];
  }
  return out;
}

// Lanes of a and b in turns, from lane `first` of each on.
template <class V>
XPU_SIM_SIMD V merge(int first, const V& a, const V& b) {
  V out = {};
  for (int i = 0; i < Lanes<V>::count; ++i) out.raw[i] = (i % 2 == 0 ? a : b).raw[first + i / 2];
  return out;
}

}  // namespace xpu_sim::detail

// - vsrlp: logical right shift of the whole register by a multiple of a lane's bits: lane i becomes lane
// i + bits / (bits of a lane).
// - vextract: the lane whose bit is set in the mask (one bit, not an index).
// - vshuffle2: within each four lanes, the two low results come from a, the two high ones from b, each chosen by two
// bits of the pattern. With one vector, that is both. With nothing else, the lanes of each pair change places.
// - vvmerge_l, vvmerge_h: a[0], b[0], a[1], ... of the lower and of the upper halves.
#define XPU_SIM_MOVES(V, T, M)                                                                                  \
  XPU_SIM_SIMD V##_t vsrlp_##V(int bits, V##_t v) { return ::xpu_sim::detail::shift_register(bits, v); }        \
  XPU_SIM_SIMD T vextract_##V(V##_t v, M mask = 1) {                                                            \
    const V##_t& lanes = v; /* const: a copy of the lane */                                                     \
    return lanes[__builtin_ctzll(static_cast<unsigned long long>(mask)) % V##_t::count];                        \
  }                                                                                                             \
  XPU_SIM_SIMD V##_t vshuffle2_##V(int pattern, V##_t a, V##_t b) {                                             \
    return ::xpu_sim::detail::shuffle2(pattern, a, b);                                                          \
  }                                                                                                             \
  XPU_SIM_SIMD V##_t vshuffle2_##V(int pattern, V##_t v) { return ::xpu_sim::detail::shuffle2(pattern, v, v); } \
  XPU_SIM_SIMD V##_t vshuffle2_##V(V##_t v) { return ::xpu_sim::detail::shuffle2(0xB1, v, v); }                 \
  XPU_SIM_SIMD V##_t vvmerge_l_##V(V##_t a, V##_t b) { return ::xpu_sim::detail::merge(0, a, b); }              \
  XPU_SIM_SIMD V##_t vvmerge_h_##V(V##_t a, V##_t b) { return ::xpu_sim::detail::merge(V##_t::count / 2, a, b); }
XPU_SIM_VECTORS(XPU_SIM_MOVES)
#undef XPU_SIM_MOVES

// The largest lane; NaN is passed over.
#define XPU_SIM_MAXIMUM(V, T, M)              \
  XPU_SIM_SIMD T vrmax_##V(V##_t v) {         \
    const V##_t& lanes = v;                   \
    T most = lanes[0];                        \
    for (int i = 1; i < V##_t::count; ++i) {  \
      const T x = lanes[i];                   \
      if (x > most || most != most) most = x; \
    }                                         \
    return most;                              \
  }
XPU_SIM_FLOATS(XPU_SIM_MAXIMUM)
#undef XPU_SIM_MAXIMUM
