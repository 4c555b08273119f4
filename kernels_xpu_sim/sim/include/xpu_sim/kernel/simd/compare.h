// Comparisons: bit i of the result belongs to lane i. A scalar is the left operand: svle is s <= v[i].
#pragma once

#include "xpu_sim/kernel/simd/arithmetic.h"
#include "xpu_sim/kernel/simd/types.h"

#define XPU_SIM_COMPARE(NAME, OP, V, T)                                                                         \
  XPU_SIM_SIMD int vv##NAME##_##V(V##_t a, V##_t b) { return ::xpu_sim::detail::bitmap(a OP b); }               \
  XPU_SIM_SIMD int vv##NAME##_##V##_mz(V##_t a, V##_t b, int mask) { return vv##NAME##_##V(a, b) & mask; }      \
  XPU_SIM_SIMD int sv##NAME##_##V(T s, V##_t v) { return vv##NAME##_##V(::xpu_sim::detail::all_##V(s), v); }    \
  XPU_SIM_SIMD int sv##NAME##_##V##_mz(T s, V##_t v, int mask) { return sv##NAME##_##V(s, v) & mask; }

#define XPU_SIM_COMPARISONS(V, T)  \
  XPU_SIM_COMPARE(eq, ==, V, T)    \
  XPU_SIM_COMPARE(neq, !=, V, T)   \
  XPU_SIM_COMPARE(lt, <, V, T)     \
  XPU_SIM_COMPARE(le, <=, V, T)

XPU_SIM_COMPARISONS(int32x16, int)
XPU_SIM_COMPARISONS(float32x16, float)
#undef XPU_SIM_COMPARISONS
#undef XPU_SIM_COMPARE
