// Vector types. GCC's are exactly what kernels expect: default-uninitialised, `= {0}`, v[i], reinterpret_cast.
#pragma once

#include <cstdint>

#include "xpu_sim/kernel/types.h"

// A 64-byte vector is passed differently with and without AVX-512. None is passed: all functions here are inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

typedef int8_t int8x64_t __attribute__((vector_size(64)));
typedef uint8_t uint8x64_t __attribute__((vector_size(64)));
typedef int16_t int16x32_t __attribute__((vector_size(64)));
typedef uint16_t uint16x32_t __attribute__((vector_size(64)));
typedef int32_t int32x16_t __attribute__((vector_size(64)));
typedef uint32_t uint32x16_t __attribute__((vector_size(64)));
typedef float float32x16_t __attribute__((vector_size(64)));

// Halves by their bits: host compilers lack the arithmetic, which is done in float32.
struct float16x32_t {
  uint16x32_t bits;
};

#define XPU_SIM_SIMD inline __attribute__((always_inline))

// The types of each family of builtins: each(vector, element, mask). Bit i of a mask belongs to lane i.
#define XPU_SIM_SIGNED(each) \
  each(int8x64, int8_t, unsigned long long) each(int16x32, int16_t, unsigned) each(int32x16, int32_t, int)
#define XPU_SIM_UNSIGNED(each) \
  each(uint8x64, uint8_t, unsigned long long) each(uint16x32, uint16_t, unsigned) each(uint32x16, uint32_t, int)
#define XPU_SIM_INTEGERS(each) XPU_SIM_SIGNED(each) XPU_SIM_UNSIGNED(each)
#define XPU_SIM_FLOATS(each) each(float32x16, float, int) each(float16x32, float16, unsigned)
#define XPU_SIM_VECTORS(each) XPU_SIM_INTEGERS(each) XPU_SIM_FLOATS(each)

namespace xpu_sim::detail {

// What a vector, or one of its elements, stands for: Bits are integers as wide as its elements.
template <class T>
struct Lanes;
#define XPU_SIM_LANES(V, T, M)                   \
  template <>                                    \
  struct Lanes<V##_t> {                          \
    using Vector = V##_t;                        \
    using Element = T;                           \
    using Mask = M;                              \
    static constexpr int count = 64 / sizeof(T); \
  };                                             \
  template <>                                    \
  struct Lanes<T> : Lanes<V##_t> {};
XPU_SIM_VECTORS(XPU_SIM_LANES)
#undef XPU_SIM_LANES

template <class T>
using VectorOf = typename Lanes<T>::Vector;
template <class V>
using ElementOf = typename Lanes<V>::Element;
template <class V>
using MaskOf = typename Lanes<V>::Mask;

template <size_t BYTES>
struct IntegersOf;
template <>
struct IntegersOf<1> {
  using type = int8x64_t;
};
template <>
struct IntegersOf<2> {
  using type = int16x32_t;
};
template <>
struct IntegersOf<4> {
  using type = int32x16_t;
};
// Vectors of integers as wide as V's elements: what comparisons of V give.
template <class V>
using TruthOf = typename IntegersOf<sizeof(ElementOf<V>)>::type;

// One lane.
template <class V>
XPU_SIM_SIMD ElementOf<V> lane(const V& v, int i) {
  return v[i];
}
XPU_SIM_SIMD float16 lane(const float16x32_t& v, int i) {
  float16 x;
  x.bits = v.bits[i];
  return x;
}
template <class V>
XPU_SIM_SIMD void set_lane(V* v, int i, ElementOf<V> x) {
  (*v)[i] = x;
}
XPU_SIM_SIMD void set_lane(float16x32_t* v, int i, float16 x) { v->bits[i] = x.bits; }

// Every lane the same.
template <class V>
XPU_SIM_SIMD V all(ElementOf<V> s) {
  V v = {};
  for (int i = 0; i < Lanes<V>::count; ++i) set_lane(&v, i, s);
  return v;
}
template <>
XPU_SIM_SIMD int32x16_t all<int32x16_t>(int32_t s) {
  return int32x16_t{s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s};
}
template <>
XPU_SIM_SIMD float32x16_t all<float32x16_t>(float s) {
  return float32x16_t{s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s};
}

// Lane i of the result is all ones where bit i of the mask is set.
template <class V>
XPU_SIM_SIMD TruthOf<V> lanes(MaskOf<V> mask) {
  TruthOf<V> on = {};
  for (int i = 0; i < Lanes<V>::count; ++i) on[i] = mask >> i & 1 ? -1 : 0;
  return on;
}
XPU_SIM_SIMD int32x16_t lanes32(int mask) {
  const int32x16_t bit = {1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                          1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  return (mask & bit) != 0;
}
template <>
XPU_SIM_SIMD int32x16_t lanes<int32x16_t>(int mask) {
  return lanes32(mask);
}
template <>
XPU_SIM_SIMD int32x16_t lanes<uint32x16_t>(int mask) {
  return lanes32(mask);
}
template <>
XPU_SIM_SIMD int32x16_t lanes<float32x16_t>(int mask) {
  return lanes32(mask);
}

template <class V>
XPU_SIM_SIMD V select(TruthOf<V> take, V yes, V no) {
  using T = TruthOf<V>;
  return reinterpret_cast<V>((reinterpret_cast<T>(yes) & take) | (reinterpret_cast<T>(no) & ~take));
}
XPU_SIM_SIMD float16x32_t select(int16x32_t take, float16x32_t yes, float16x32_t no) {
  return {select(take, yes.bits, no.bits)};
}

// Bit i is set where lane i is all ones.
template <class T>
XPU_SIM_SIMD MaskOf<T> bitmap(T on) {
  MaskOf<T> bits = 0;
  for (int i = 0; i < Lanes<T>::count; ++i) bits |= static_cast<MaskOf<T>>(on[i] & 1) << i;
  return bits;
}
#if defined(__SSE2__)
template <>
XPU_SIM_SIMD int bitmap(int32x16_t on) {
  typedef float Quarter __attribute__((vector_size(16)));
  Quarter q[4];
  __builtin_memcpy(q, &on, sizeof q);
  int bits = 0;
  for (int i = 0; i < 4; ++i) bits |= __builtin_ia32_movmskps(q[i]) << (4 * i);
  return bits;
}
#endif

// Of two operands lane by lane, in float32 and rounded once, which for halves gives the correctly rounded result.
template <class F>
XPU_SIM_SIMD float16x32_t of_halves(const float16x32_t& a, const float16x32_t& b, F f) {
  float16x32_t out = {};
  for (int i = 0; i < 32; ++i) {
    out.bits[i] = bits::half_of(f(bits::half_to_float(a.bits[i]), bits::half_to_float(b.bits[i])));
  }
  return out;
}

}  // namespace xpu_sim::detail
