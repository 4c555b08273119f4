// Lane-wise arithmetic and logic. Integers wrap as registers do.
#pragma once

#include <type_traits>

#include "xpu_sim/kernel/convert.h"
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

// The compiler's vector with which integers count without overflow.
template <class V>
using Wrapping = std::conditional_t<
    std::is_same_v<V, int8x64_t>, RawUint8x64,
    std::conditional_t<std::is_same_v<V, int16x32_t>, RawUint16x32,
                       std::conditional_t<std::is_same_v<V, int32x16_t>, RawUint32x16, typename V::Raw>>>;

template <class F, class V>
XPU_SIM_SIMD V apply(const V& a, const V& b) {
  if constexpr (std::is_same_v<V, float16x32_t>) {
    return of_halves(F(), a, b);
  } else {
    using U = Wrapping<V>;
    return V(reinterpret_cast<typename V::Raw>(F()(reinterpret_cast<U>(a.raw), reinterpret_cast<U>(b.raw))));
  }
}
// Of the bits, whatever they stand for.
template <class F, class V>
XPU_SIM_SIMD V apply_to_bits(const V& a, const V& b) {
  return V(reinterpret_cast<typename V::Raw>(
      F()(reinterpret_cast<RawUint32x16>(a.raw), reinterpret_cast<RawUint32x16>(b.raw))));
}

// NaN is neither larger nor smaller: then it is b.
#define XPU_SIM_CHOICE(NAME, OP)                                               \
  template <class V>                                                           \
  XPU_SIM_SIMD V NAME(const V& a, const V& b) {                                \
    if constexpr (std::is_same_v<V, float16x32_t>) {                           \
      return of_halves([](float x, float y) { return x OP y ? x : y; }, a, b); \
    } else {                                                                   \
      return select<V>(reinterpret_cast<TruthOf<V>>(a.raw OP b.raw), a, b);    \
    }                                                                          \
  }
XPU_SIM_CHOICE(larger, >)
XPU_SIM_CHOICE(smaller, <)
#undef XPU_SIM_CHOICE
// a * b + c: of halves in float32, rounded once; of others, product and sum are rounded each.
template <class V>
XPU_SIM_SIMD V multiply_add(const V& a, const V& b, const V& c) {
  if constexpr (std::is_same_v<V, float16x32_t>) {
    return of_halves([](float x, float y, float z) { return x * y + z; }, a, b, c);
  } else {
    return apply<Add>(apply<Mul>(a, b), c);
  }
}

// Shifts, by as many bits as the lane of `count` says: by all of the register's and more, nothing is left.
template <class V>
XPU_SIM_SIMD V shift_left(const V& count, const V& v) {
  constexpr int kBits = 8 * sizeof(ElementOf<V>);
  using E = std::make_unsigned_t<ElementOf<V>>;
  V out = {};
  for (int i = 0; i < Lanes<V>::count; ++i) {
    const E n = static_cast<E>(count.raw[i]);
    out.raw[i] = n < kBits ? static_cast<ElementOf<V>>(static_cast<E>(static_cast<E>(v.raw[i]) << n)) : 0;
  }
  return out;
}
// Zeros, or the sign, come in from the left.
template <class E, class V>
XPU_SIM_SIMD V shift_right(const V& count, const V& v) {
  constexpr int kBits = 8 * sizeof(E);
  V out = {};
  for (int i = 0; i < Lanes<V>::count; ++i) {
    const auto n = static_cast<std::make_unsigned_t<E>>(count.raw[i]);
    const E x = static_cast<E>(v.raw[i]);
    out.raw[i] = static_cast<ElementOf<V>>(n < kBits ? x >> n : x < 0 ? -1 : 0);
  }
  return out;
}

}  // namespace xpu_sim::detail

#define XPU_SIM_UNPACKED(...) __VA_ARGS__
// An operation in its three forms. VALUE: what lanes become, of the arguments.
#define XPU_SIM_FORMS(NAME, V, M, PARAMETERS, ARGUMENTS, VALUE)                                        \
  XPU_SIM_SIMD V##_t NAME PARAMETERS { return VALUE; }                                                 \
  XPU_SIM_SIMD V##_t NAME##_mz(XPU_SIM_UNPACKED PARAMETERS, M mask = static_cast<M>(-1)) {             \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes<V##_t>(mask), NAME ARGUMENTS, V##_t{});  \
  }                                                                                                    \
  XPU_SIM_SIMD V##_t NAME##_mh(XPU_SIM_UNPACKED PARAMETERS, V##_t hold, M mask = static_cast<M>(-1)) { \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes<V##_t>(mask), NAME ARGUMENTS, hold);     \
  }
// Of two vectors, and of a scalar and a vector. EXPR speaks of vectors a and b.
#define XPU_SIM_BINARY(NAME, V, T, M, EXPR)                                                \
  XPU_SIM_FORMS(vv##NAME##_##V, V, M, (V##_t a, V##_t b), (a, b), ::xpu_sim::detail::EXPR) \
  XPU_SIM_FORMS(sv##NAME##_##V, V, M, (T s, V##_t b), (s, b), vv##NAME##_##V(::xpu_sim::detail::all<V##_t>(s), b))

#define XPU_SIM_ARITHMETIC(V, T, M)                               \
  XPU_SIM_BINARY(add, V, T, M, apply<xpu_sim::detail::Add>(a, b)) \
  XPU_SIM_BINARY(sub, V, T, M, apply<xpu_sim::detail::Sub>(a, b)) \
  XPU_SIM_BINARY(mul, V, T, M, apply<xpu_sim::detail::Mul>(a, b)) \
  XPU_SIM_BINARY(max, V, T, M, larger(a, b))                      \
  XPU_SIM_BINARY(min, V, T, M, smaller(a, b))
#define XPU_SIM_DIVISION(V, T, M) XPU_SIM_BINARY(div, V, T, M, apply<xpu_sim::detail::Div>(a, b))
#define XPU_SIM_LOGIC(V, T, M)                                            \
  XPU_SIM_BINARY(and, V, T, M, apply_to_bits<xpu_sim::detail::And>(a, b)) \
  XPU_SIM_BINARY(or, V, T, M, apply_to_bits<xpu_sim::detail::Or>(a, b))   \
  XPU_SIM_BINARY(xor, V, T, M, apply_to_bits<xpu_sim::detail::Xor>(a, b))
// The count of a shift is its first operand, as with vsrlp.
#define XPU_SIM_SHIFTS(V, T, M)                                            \
  XPU_SIM_BINARY(sll, V, T, M, shift_left(a, b))                           \
  XPU_SIM_BINARY(srl, V, T, M, shift_right<std::make_unsigned_t<T>>(a, b)) \
  XPU_SIM_BINARY(sra, V, T, M, shift_right<std::make_signed_t<T>>(a, b))
// a * b + c.
#define XPU_SIM_MULTIPLY_ADD(V, T, M)                                                                              \
  XPU_SIM_FORMS(vvmac_##V, V, M, (V##_t a, V##_t b, V##_t c), (a, b, c), ::xpu_sim::detail::multiply_add(a, b, c)) \
  XPU_SIM_FORMS(svmac_##V, V, M, (T s, V##_t b, V##_t c), (s, b, c), vvmac_##V(V##_t(s), b, c))

XPU_SIM_VECTORS(XPU_SIM_ARITHMETIC)
XPU_SIM_FLOATS(XPU_SIM_DIVISION)
XPU_SIM_INTEGERS(XPU_SIM_LOGIC)
XPU_SIM_LOGIC(float32x16, float, int)
XPU_SIM_INTEGERS(XPU_SIM_SHIFTS)
XPU_SIM_VECTORS(XPU_SIM_MULTIPLY_ADD)
#undef XPU_SIM_MULTIPLY_ADD
#undef XPU_SIM_SHIFTS
#undef XPU_SIM_LOGIC
#undef XPU_SIM_DIVISION
#undef XPU_SIM_ARITHMETIC
#undef XPU_SIM_BINARY
#undef XPU_SIM_FORMS
#undef XPU_SIM_UNPACKED

// By the type of an element, or of a vector: vvadd<float>(a, b) is vvadd_float32x16(a, b).
#define XPU_SIM_BY_TYPE(NAME, EXPR)                                                                                    \
  template <class T>                                                                                                   \
  XPU_SIM_SIMD xpu_sim::detail::VectorOf<T> vv##NAME(xpu_sim::detail::VectorOf<T> a, xpu_sim::detail::VectorOf<T> b) { \
    return ::xpu_sim::detail::EXPR;                                                                                    \
  }                                                                                                                    \
  template <class T>                                                                                                   \
  XPU_SIM_SIMD xpu_sim::detail::VectorOf<T> sv##NAME(xpu_sim::detail::ElementOf<T> s,                                  \
                                                     xpu_sim::detail::VectorOf<T> b) {                                 \
    return vv##NAME<T>(::xpu_sim::detail::all<xpu_sim::detail::VectorOf<T>>(s), b);                                    \
  }
XPU_SIM_BY_TYPE(add, apply<xpu_sim::detail::Add>(a, b))
XPU_SIM_BY_TYPE(sub, apply<xpu_sim::detail::Sub>(a, b))
XPU_SIM_BY_TYPE(mul, apply<xpu_sim::detail::Mul>(a, b))
XPU_SIM_BY_TYPE(max, larger(a, b))
XPU_SIM_BY_TYPE(min, smaller(a, b))
#undef XPU_SIM_BY_TYPE

// The most negative integer stays what it is.
#define XPU_SIM_ABS(V, T, M) \
  XPU_SIM_SIMD V##_t vabs_##V(V##_t v) { return ::xpu_sim::detail::select<V##_t>(v.raw < 0, vvsub_##V(V##_t{}, v), v); }
XPU_SIM_SIGNED(XPU_SIM_ABS)
#undef XPU_SIM_ABS
XPU_SIM_SIMD float32x16_t vabs_float32x16(float32x16_t v) {
  using namespace xpu_sim::detail;
  return reinterpret_cast<RawFloat32x16>(reinterpret_cast<RawInt32x16>(v.raw) & 0x7FFFFFFF);
}
XPU_SIM_SIMD float16x32_t vabs_float16x32(float16x32_t v) { return v.raw & 0x7FFF; }

XPU_SIM_SIMD float32x16_t vfix2float(int32x16_t v) {
  return __builtin_convertvector(v.raw, xpu_sim::detail::RawFloat32x16);
}
// To the nearest, ties to even; beyond the range, the largest or smallest integer; NaN gives 0.
XPU_SIM_SIMD int32x16_t vfloat2fix(float32x16_t v) {
  int32x16_t out = {};
  for (int i = 0; i < 16; ++i) out.raw[i] = xpu_sim::detail::truncated<int>(__builtin_nearbyintf(v.raw[i]));
  return out;
}

// The lower and the upper 16 of 32 halves.
namespace xpu_sim::detail {

XPU_SIM_SIMD float32x16_t floats_of(const float16x32_t& v, int first) {
  float32x16_t out = {};
  for (int i = 0; i < 16; ++i) out.raw[i] = v[first + i];
  return out;
}
template <class F>
XPU_SIM_SIMD float16x32_t halves_of(const float32x16_t& l, const float32x16_t& h, F half) {
  float16x32_t out = {};
  for (int i = 0; i < 32; ++i) out.raw[i] = half(i < 16 ? l.raw[i] : h.raw[i - 16]);
  return out;
}

}  // namespace xpu_sim::detail

XPU_SIM_SIMD float32x16_t vfp162float_l(float16x32_t v) { return xpu_sim::detail::floats_of(v, 0); }
XPU_SIM_SIMD float32x16_t vfp162float_h(float16x32_t v) { return xpu_sim::detail::floats_of(v, 16); }
// To the nearest, ties to even, or toward zero.
XPU_SIM_SIMD float16x32_t vfloat2fp16_lh(float32x16_t l, float32x16_t h) {
  return xpu_sim::detail::halves_of(l, h, xpu_sim::bits::half_of);
}
XPU_SIM_SIMD float16x32_t vfloat2fp16_lh_rn(float32x16_t l, float32x16_t h) { return vfloat2fp16_lh(l, h); }
XPU_SIM_SIMD float16x32_t vfloat2fp16_lh_rz(float32x16_t l, float32x16_t h) {
  return xpu_sim::detail::halves_of(l, h, xpu_sim::bits::half_toward_zero);
}

// Comparisons: bit i of the result belongs to lane i. A scalar is the left operand: svle is s <= v[i].
namespace xpu_sim::detail {

#define XPU_SIM_RELATION(NAME, OP)                                                       \
  template <class V>                                                                     \
  XPU_SIM_SIMD TruthOf<V> NAME(const V& a, const V& b) {                                 \
    if constexpr (std::is_same_v<V, float16x32_t>) {                                     \
      RawInt16x32 on = {};                                                               \
      for (int i = 0; i < 32; ++i) {                                                     \
        on[i] = bits::half_to_float(a.raw[i]) OP bits::half_to_float(b.raw[i]) ? -1 : 0; \
      }                                                                                  \
      return on;                                                                         \
    } else {                                                                             \
      return reinterpret_cast<TruthOf<V>>(a.raw OP b.raw);                               \
    }                                                                                    \
  }
XPU_SIM_RELATION(eq, ==)
XPU_SIM_RELATION(neq, !=)
XPU_SIM_RELATION(lt, <)
XPU_SIM_RELATION(le, <=)
#undef XPU_SIM_RELATION

}  // namespace xpu_sim::detail

#define XPU_SIM_COMPARE(NAME, V, T, M)                                                                        \
  XPU_SIM_SIMD M vv##NAME##_##V(V##_t a, V##_t b) {                                                           \
    return ::xpu_sim::detail::bitmap<V##_t>(::xpu_sim::detail::NAME(a, b));                                   \
  }                                                                                                           \
  XPU_SIM_SIMD M vv##NAME##_##V##_mz(V##_t a, V##_t b, M mask = static_cast<M>(-1)) {                         \
    return vv##NAME##_##V(a, b) & mask;                                                                       \
  }                                                                                                           \
  XPU_SIM_SIMD M sv##NAME##_##V(T s, V##_t v) { return vv##NAME##_##V(::xpu_sim::detail::all<V##_t>(s), v); } \
  XPU_SIM_SIMD M sv##NAME##_##V##_mz(T s, V##_t v, M mask = static_cast<M>(-1)) { return sv##NAME##_##V(s, v) & mask; }

#define XPU_SIM_COMPARISONS(V, T, M) \
  XPU_SIM_COMPARE(eq, V, T, M)       \
  XPU_SIM_COMPARE(neq, V, T, M)      \
  XPU_SIM_COMPARE(lt, V, T, M)       \
  XPU_SIM_COMPARE(le, V, T, M)

XPU_SIM_VECTORS(XPU_SIM_COMPARISONS)
#undef XPU_SIM_COMPARISONS
#undef XPU_SIM_COMPARE
