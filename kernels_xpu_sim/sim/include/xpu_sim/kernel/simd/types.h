// Vector types. A vector starts uninitialised and is built from a scalar, v(0), or from its first lanes, v = {1, 2};
// v[i] is a lane. RAW is the compiler's vector, which operations are made of.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "xpu_sim/kernel/types.h"

// A 64-byte vector is passed differently with and without AVX-512. None is passed: all functions here are inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

#define XPU_SIM_SIMD inline __attribute__((always_inline))

namespace xpu_sim::detail {

typedef int8_t RawInt8x64 __attribute__((vector_size(64)));
typedef uint8_t RawUint8x64 __attribute__((vector_size(64)));
typedef int16_t RawInt16x32 __attribute__((vector_size(64)));
typedef uint16_t RawUint16x32 __attribute__((vector_size(64)));
typedef int32_t RawInt32x16 __attribute__((vector_size(64)));
typedef uint32_t RawUint32x16 __attribute__((vector_size(64)));
typedef float RawFloat32x16 __attribute__((vector_size(64)));

template <class T, class RAW>
struct alignas(64) Vec {
  using Element = T;
  using Raw = RAW;
  static constexpr int count = 64 / sizeof(T);

  RAW raw;

  Vec() = default;
  XPU_SIM_SIMD Vec(RAW r) : raw(r) {}
  template <class S, class = std::enable_if_t<std::is_convertible_v<S, T>>>
  XPU_SIM_SIMD explicit Vec(S s) : raw(splat(bits_of(static_cast<T>(s)), std::make_index_sequence<size_t{count}>{})) {}
  XPU_SIM_SIMD Vec(std::initializer_list<T> lanes) : raw{} {
    int i = 0;
    for (const T& x : lanes) raw[i++] = bits_of(x);
  }

  XPU_SIM_SIMD T& operator[](int i) { return reinterpret_cast<T*>(this)[i]; }
  XPU_SIM_SIMD T operator[](int i) const {
    if constexpr (std::is_arithmetic_v<T>) {
      return raw[i];
    } else {
      T x;
      x.bits = raw[i];
      return x;
    }
  }

 private:
  // Without a loop, which checking builds look at lane by lane.
  template <class B, size_t... I>
  static XPU_SIM_SIMD RAW splat(B b, std::index_sequence<I...>) {
    return RAW{(static_cast<void>(I), b)...};
  }
  static XPU_SIM_SIMD auto bits_of(const T& x) {
    if constexpr (std::is_arithmetic_v<T>) {
      return x;
    } else {
      return x.bits;
    }
  }
};

}  // namespace xpu_sim::detail

using int8x64_t = xpu_sim::detail::Vec<int8_t, xpu_sim::detail::RawInt8x64>;
using uint8x64_t = xpu_sim::detail::Vec<uint8_t, xpu_sim::detail::RawUint8x64>;
using int16x32_t = xpu_sim::detail::Vec<int16_t, xpu_sim::detail::RawInt16x32>;
using uint16x32_t = xpu_sim::detail::Vec<uint16_t, xpu_sim::detail::RawUint16x32>;
using int32x16_t = xpu_sim::detail::Vec<int32_t, xpu_sim::detail::RawInt32x16>;
using uint32x16_t = xpu_sim::detail::Vec<uint32_t, xpu_sim::detail::RawUint32x16>;
using float32x16_t = xpu_sim::detail::Vec<float, xpu_sim::detail::RawFloat32x16>;
// Halves by their bits: host compilers lack the arithmetic, which is done in float32.
using float16x32_t = xpu_sim::detail::Vec<float16, xpu_sim::detail::RawUint16x32>;
static_assert(std::is_trivial_v<int32x16_t> && alignof(float16x32_t) == 64 && sizeof(int8x64_t) == 64);

// The types of each family of builtins: each(vector, element, mask). Bit i of a mask belongs to lane i.
#define XPU_SIM_SIGNED(each) \
  each(int8x64, int8_t, unsigned long long) each(int16x32, int16_t, unsigned) each(int32x16, int32_t, int)
#define XPU_SIM_UNSIGNED(each) \
  each(uint8x64, uint8_t, unsigned long long) each(uint16x32, uint16_t, unsigned) each(uint32x16, uint32_t, int)
#define XPU_SIM_INTEGERS(each) XPU_SIM_SIGNED(each) XPU_SIM_UNSIGNED(each)
#define XPU_SIM_FLOATS(each) each(float32x16, float, int) each(float16x32, float16, unsigned)
#define XPU_SIM_VECTORS(each) XPU_SIM_INTEGERS(each) XPU_SIM_FLOATS(each)

namespace xpu_sim::detail {

// What a vector, or one of its elements, stands for.
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

// Integers as wide as V's elements: what comparisons of V give.
template <class V, size_t BYTES = sizeof(ElementOf<V>)>
using TruthOf = std::conditional_t<BYTES == 1, RawInt8x64, std::conditional_t<BYTES == 2, RawInt16x32, RawInt32x16>>;

// Every lane the same.
template <class V>
XPU_SIM_SIMD V all(ElementOf<V> s) {
  return V(s);
}

// Lane i of the result is all ones where bit i of the mask is set.
template <class V>
XPU_SIM_SIMD TruthOf<V> lanes(MaskOf<V> mask) {
  if constexpr (Lanes<V>::count == 16) {
    const RawInt32x16 bit = {1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                             1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
    return (mask & bit) != 0;
  } else {
    TruthOf<V> on = {};
    for (int i = 0; i < Lanes<V>::count; ++i) on[i] = mask >> i & 1 ? -1 : 0;
    return on;
  }
}

template <class V>
XPU_SIM_SIMD V select(TruthOf<V> take, const V& yes, const V& no) {
  using T = TruthOf<V>;
  return V(
      reinterpret_cast<typename V::Raw>((reinterpret_cast<T>(yes.raw) & take) | (reinterpret_cast<T>(no.raw) & ~take)));
}

// Bit i is set where lane i is all ones.
template <class V>
XPU_SIM_SIMD MaskOf<V> bitmap(TruthOf<V> on) {
#if defined(__SSE2__)
  if constexpr (Lanes<V>::count == 16) {
    typedef float Quarter __attribute__((vector_size(16)));
    Quarter q[4];
    __builtin_memcpy(q, &on, sizeof q);
    int bits = 0;
    for (int i = 0; i < 4; ++i) bits |= __builtin_ia32_movmskps(q[i]) << (4 * i);
    return bits;
  }
#endif
  MaskOf<V> bits = 0;
  for (int i = 0; i < Lanes<V>::count; ++i) bits |= static_cast<MaskOf<V>>(on[i] & 1) << i;
  return bits;
}

// Of operands lane by lane, in float32 and rounded once, which for halves gives the correctly rounded result.
template <class F, class... H>
XPU_SIM_SIMD float16x32_t of_halves(F f, const H&... operands) {
  float16x32_t out = {};
  for (int i = 0; i < 32; ++i) out.raw[i] = bits::half_of(f(bits::half_to_float(operands.raw[i])...));
  return out;
}

}  // namespace xpu_sim::detail

// The operators that the compiler's own vectors have.
#define XPU_SIM_VECTOR_OPERATOR(OP)                                                       \
  template <class T, class RAW, class = std::enable_if_t<std::is_arithmetic_v<T>>>        \
  XPU_SIM_SIMD xpu_sim::detail::Vec<T, RAW> operator OP(xpu_sim::detail::Vec<T, RAW> a,   \
                                                        xpu_sim::detail::Vec<T, RAW> b) { \
    return a.raw OP b.raw;                                                                \
  }                                                                                       \
  template <class T, class RAW, class = std::enable_if_t<std::is_arithmetic_v<T>>>        \
  XPU_SIM_SIMD xpu_sim::detail::Vec<T, RAW>& operator OP## =                              \
      (xpu_sim::detail::Vec<T, RAW> & a, xpu_sim::detail::Vec<T, RAW> b) {                \
    return a = a OP b;                                                                    \
  }
XPU_SIM_VECTOR_OPERATOR(+)
XPU_SIM_VECTOR_OPERATOR(-)
XPU_SIM_VECTOR_OPERATOR(*)
XPU_SIM_VECTOR_OPERATOR(/)
XPU_SIM_VECTOR_OPERATOR(&)
XPU_SIM_VECTOR_OPERATOR(|)
XPU_SIM_VECTOR_OPERATOR(^)
#undef XPU_SIM_VECTOR_OPERATOR

// What `specdec-hal xpu cc` makes of reinterpret_cast<int32x16_t>(v): the language has it for the compiler's own
// vectors alone.
template <class V, class T, class RAW>
XPU_SIM_SIMD V xpu_sim_reinterpret_cast(const xpu_sim::detail::Vec<T, RAW>& from) {
  return reinterpret_cast<typename V::Raw>(from.raw);
}
