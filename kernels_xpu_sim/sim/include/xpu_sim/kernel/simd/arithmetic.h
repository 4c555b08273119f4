// Lane-wise arithmetic and logic. Integers wrap as registers do.
#pragma once

#include <type_traits>

#include "xpu_sim/kernel/simd/types.h"

namespace xpu_sim::detail {

// Each operation on two vectors, or two scalars of the kind that a half is calculated in.
#define XPU_SIM_OPERATOR(NAME, OP)                            \
  struct NAME {                                               \
    template <class T>                                        \
    XPU_SIM_SIMD T operator()(const T& a, const T& b) const { \
      return a OP b;                                          \
    }                                                         \
  }
XPU_SIM_OPERATOR(Add, +);
XPU_SIM_OPERATOR(Sub, -);
XPU_SIM_OPERATOR(Mul, *);
XPU_SIM_OPERATOR(Div, /);
XPU_SIM_OPERATOR(And, &);
XPU_SIM_OPERATOR(Or, |);
XPU_SIM_OPERATOR(Xor, ^);
#undef XPU_SIM_OPERATOR

// Vectors of integers count without overflow.
template <class V>
struct Wrapping {
  using type = V;
};
template <>
struct Wrapping<int8x64_t> {
  using type = uint8x64_t;
};
template <>
struct Wrapping<int16x32_t> {
  using type = uint16x32_t;
};
template <>
struct Wrapping<int32x16_t> {
  using type = uint32x16_t;
};

template <class F, class V>
XPU_SIM_SIMD V apply(const V& a, const V& b) {
  using U = typename Wrapping<V>::type;
  return reinterpret_cast<V>(F()(reinterpret_cast<const U&>(a), reinterpret_cast<const U&>(b)));
}
template <class F>
XPU_SIM_SIMD float16x32_t apply(const float16x32_t& a, const float16x32_t& b) {
  return of_halves(a, b, F());
}

template <class V>
XPU_SIM_SIMD V larger(const V& a, const V& b) {
  return select(a > b, a, b);
}
XPU_SIM_SIMD float16x32_t larger(const float16x32_t& a, const float16x32_t& b) {
  return of_halves(a, b, [](float x, float y) { return x > y ? x : y; });
}
template <class V>
XPU_SIM_SIMD V smaller(const V& a, const V& b) {
  return select(a < b, a, b);
}
XPU_SIM_SIMD float16x32_t smaller(const float16x32_t& a, const float16x32_t& b) {
  return of_halves(a, b, [](float x, float y) { return x < y ? x : y; });
}

// Shifts, by as many bits as the lane of `count` says: by all of the register's and more, nothing is left.
template <class V>
XPU_SIM_SIMD V shift_left(const V& count, const V& v) {
  constexpr int kBits = 8 * sizeof(ElementOf<V>);
  using E = std::make_unsigned_t<ElementOf<V>>;
  V out = {};
  for (int i = 0; i < Lanes<V>::count; ++i) {
    const E n = static_cast<E>(count[i]);
    out[i] = n < kBits ? static_cast<ElementOf<V>>(static_cast<E>(static_cast<E>(v[i]) << n)) : 0;
  }
  return out;
}
// Zeros, or the sign, come in from the left.
template <class E, class V>
XPU_SIM_SIMD V shift_right(const V& count, const V& v) {
  constexpr int kBits = 8 * sizeof(E);
  V out = {};
  for (int i = 0; i < Lanes<V>::count; ++i) {
    const auto n = static_cast<std::make_unsigned_t<E>>(count[i]);
    const E x = static_cast<E>(v[i]);
    out[i] = static_cast<ElementOf<V>>(n < kBits ? x >> n : x < 0 ? -1 : 0);
  }
  return out;
}

}  // namespace xpu_sim::detail

// A two-operand operation in its six forms. EXPR speaks of vectors a and b.
#define XPU_SIM_BINARY(NAME, V, T, M, EXPR)                                                                       \
  XPU_SIM_SIMD V##_t vv##NAME##_##V(V##_t a, V##_t b) { return ::xpu_sim::detail::EXPR; }                         \
  XPU_SIM_SIMD V##_t vv##NAME##_##V##_mz(V##_t a, V##_t b, M mask) {                                              \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes<V##_t>(mask), vv##NAME##_##V(a, b), V##_t{});       \
  }                                                                                                               \
  XPU_SIM_SIMD V##_t vv##NAME##_##V##_mh(V##_t a, V##_t b, V##_t hold, M mask) {                                  \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes<V##_t>(mask), vv##NAME##_##V(a, b), hold);          \
  }                                                                                                               \
  XPU_SIM_SIMD V##_t sv##NAME##_##V(T s, V##_t b) { return vv##NAME##_##V(::xpu_sim::detail::all<V##_t>(s), b); } \
  XPU_SIM_SIMD V##_t sv##NAME##_##V##_mz(T s, V##_t b, M mask) {                                                  \
    return vv##NAME##_##V##_mz(::xpu_sim::detail::all<V##_t>(s), b, mask);                                        \
  }                                                                                                               \
  XPU_SIM_SIMD V##_t sv##NAME##_##V##_mh(T s, V##_t b, V##_t hold, M mask) {                                      \
    return vv##NAME##_##V##_mh(::xpu_sim::detail::all<V##_t>(s), b, hold, mask);                                  \
  }

#define XPU_SIM_ARITHMETIC(V, T, M)                               \
  XPU_SIM_BINARY(add, V, T, M, apply<xpu_sim::detail::Add>(a, b)) \
  XPU_SIM_BINARY(sub, V, T, M, apply<xpu_sim::detail::Sub>(a, b)) \
  XPU_SIM_BINARY(mul, V, T, M, apply<xpu_sim::detail::Mul>(a, b)) \
  XPU_SIM_BINARY(max, V, T, M, larger(a, b))                      \
  XPU_SIM_BINARY(min, V, T, M, smaller(a, b))
#define XPU_SIM_DIVISION(V, T, M) XPU_SIM_BINARY(div, V, T, M, apply<xpu_sim::detail::Div>(a, b))
// The count of a shift is its first operand, as with vsrlp.
#define XPU_SIM_LOGIC(V, T, M)                                             \
  XPU_SIM_BINARY(and, V, T, M, apply<xpu_sim::detail::And>(a, b))          \
  XPU_SIM_BINARY(or, V, T, M, apply<xpu_sim::detail::Or>(a, b))            \
  XPU_SIM_BINARY(xor, V, T, M, apply<xpu_sim::detail::Xor>(a, b))          \
  XPU_SIM_BINARY(sll, V, T, M, shift_left(a, b))                           \
  XPU_SIM_BINARY(srl, V, T, M, shift_right<std::make_unsigned_t<T>>(a, b)) \
  XPU_SIM_BINARY(sra, V, T, M, shift_right<std::make_signed_t<T>>(a, b))

XPU_SIM_VECTORS(XPU_SIM_ARITHMETIC)
XPU_SIM_FLOATS(XPU_SIM_DIVISION)
XPU_SIM_INTEGERS(XPU_SIM_LOGIC)
#undef XPU_SIM_LOGIC
#undef XPU_SIM_DIVISION
#undef XPU_SIM_ARITHMETIC
#undef XPU_SIM_BINARY

// The most negative integer stays what it is.
#define XPU_SIM_ABS(V, T, M) \
  XPU_SIM_SIMD V##_t vabs_##V(V##_t v) { return ::xpu_sim::detail::select(v < 0, vvsub_##V(V##_t{}, v), v); }
XPU_SIM_SIGNED(XPU_SIM_ABS)
#undef XPU_SIM_ABS
XPU_SIM_SIMD float32x16_t vabs_float32x16(float32x16_t v) {
  return reinterpret_cast<float32x16_t>(reinterpret_cast<int32x16_t>(v) & 0x7FFFFFFF);
}
XPU_SIM_SIMD float16x32_t vabs_float16x32(float16x32_t v) { return {v.bits & 0x7FFF}; }

XPU_SIM_SIMD float32x16_t vfix2float(int32x16_t v) { return __builtin_convertvector(v, float32x16_t); }
// To the nearest, ties to even; beyond the range, the largest or smallest integer; NaN gives 0.
XPU_SIM_SIMD int32x16_t vfloat2fix(float32x16_t v) {
  int32x16_t out = {};
  for (int i = 0; i < 16; ++i) {
    const float x = __builtin_nearbyintf(v[i]);
    out[i] = x >= 0x1p31f ? 0x7FFFFFFF : x < -0x1p31f ? -0x7FFFFFFF - 1 : x != x ? 0 : static_cast<int>(x);
  }
  return out;
}
