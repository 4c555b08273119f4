// Lane-wise arithmetic on integers and float32.
#pragma once

#include "xpu_sim/kernel/simd/types.h"

// A two-operand operation in its six forms. EXPR speaks of vectors a and b; `all` spreads a scalar.
#define XPU_SIM_BINARY(NAME, V, T, EXPR)                                                                         \
  XPU_SIM_SIMD V##_t vv##NAME##_##V(V##_t a, V##_t b) { return EXPR; }                                           \
  XPU_SIM_SIMD V##_t vv##NAME##_##V##_mz(V##_t a, V##_t b, int mask) {                                           \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes32(mask), vv##NAME##_##V(a, b), V##_t{});           \
  }                                                                                                              \
  XPU_SIM_SIMD V##_t vv##NAME##_##V##_mh(V##_t a, V##_t b, V##_t hold, int mask) {                               \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes32(mask), vv##NAME##_##V(a, b), hold);              \
  }                                                                                                              \
  XPU_SIM_SIMD V##_t sv##NAME##_##V(T s, V##_t b) { return vv##NAME##_##V(::xpu_sim::detail::all_##V(s), b); }   \
  XPU_SIM_SIMD V##_t sv##NAME##_##V##_mz(T s, V##_t b, int mask) {                                               \
    return vv##NAME##_##V##_mz(::xpu_sim::detail::all_##V(s), b, mask);                                          \
  }                                                                                                              \
  XPU_SIM_SIMD V##_t sv##NAME##_##V##_mh(T s, V##_t b, V##_t hold, int mask) {                                   \
    return vv##NAME##_##V##_mh(::xpu_sim::detail::all_##V(s), b, hold, mask);                                    \
  }

namespace xpu_sim::detail {

XPU_SIM_SIMD int32x16_t all_int32x16(int s) {
  return int32x16_t{s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s};
}
XPU_SIM_SIMD float32x16_t all_float32x16(float s) {
  return float32x16_t{s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s};
}

// Integers wrap as registers do.
XPU_SIM_SIMD uint32x16_t u(int32x16_t v) { return reinterpret_cast<uint32x16_t>(v); }
XPU_SIM_SIMD int32x16_t i(uint32x16_t v) { return reinterpret_cast<int32x16_t>(v); }

}  // namespace xpu_sim::detail

XPU_SIM_BINARY(add, int32x16, int, ::xpu_sim::detail::i(::xpu_sim::detail::u(a) + ::xpu_sim::detail::u(b)))
XPU_SIM_BINARY(sub, int32x16, int, ::xpu_sim::detail::i(::xpu_sim::detail::u(a) - ::xpu_sim::detail::u(b)))
XPU_SIM_BINARY(mul, int32x16, int, ::xpu_sim::detail::i(::xpu_sim::detail::u(a) * ::xpu_sim::detail::u(b)))
XPU_SIM_BINARY(and, int32x16, int, a& b)
XPU_SIM_BINARY(or, int32x16, int, a | b)
XPU_SIM_BINARY(xor, int32x16, int, a ^ b)
XPU_SIM_BINARY(max, int32x16, int, ::xpu_sim::detail::select(a > b, a, b))
XPU_SIM_BINARY(min, int32x16, int, ::xpu_sim::detail::select(a < b, a, b))

XPU_SIM_BINARY(add, float32x16, float, a + b)
XPU_SIM_BINARY(sub, float32x16, float, a - b)
XPU_SIM_BINARY(mul, float32x16, float, a* b)
XPU_SIM_BINARY(div, float32x16, float, a / b)
XPU_SIM_BINARY(max, float32x16, float, ::xpu_sim::detail::select(a > b, a, b))
XPU_SIM_BINARY(min, float32x16, float, ::xpu_sim::detail::select(a < b, a, b))
#undef XPU_SIM_BINARY

XPU_SIM_SIMD float32x16_t vabs_float32x16(float32x16_t v) {
  return reinterpret_cast<float32x16_t>(reinterpret_cast<int32x16_t>(v) & 0x7FFFFFFF);
}

XPU_SIM_SIMD float32x16_t vfix2float(int32x16_t v) { return __builtin_convertvector(v, float32x16_t); }
