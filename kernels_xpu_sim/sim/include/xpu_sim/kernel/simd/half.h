// float16 x 32. Each operation is done in float32 and rounded once, which for these gives the correctly rounded half.
#pragma once

#include "xpu_sim/kernel/simd/memory.h"
#include "xpu_sim/kernel/simd/types.h"
#include "xpu_sim/kernel/types.h"

#define XPU_SIM_HALF_BINARY(NAME, EXPR)                                                           \
  XPU_SIM_SIMD float16x32_t vv##NAME##_float16x32(float16x32_t x, float16x32_t y) {               \
    float16x32_t out = {};                                                                        \
    for (int i = 0; i < 32; ++i) {                                                                \
      const float a = ::xpu_sim::bits::half_to_float(x.bits[i]);                                  \
      const float b = ::xpu_sim::bits::half_to_float(y.bits[i]);                                  \
      out.bits[i] = ::xpu_sim::bits::half_of(EXPR);                                               \
    }                                                                                             \
    return out;                                                                                   \
  }                                                                                               \
  XPU_SIM_SIMD float16x32_t sv##NAME##_float16x32(float16 s, float16x32_t y) {                    \
    float16x32_t x = {};                                                                          \
    for (int i = 0; i < 32; ++i) x.bits[i] = s.bits;                                              \
    return vv##NAME##_float16x32(x, y);                                                           \
  }

XPU_SIM_HALF_BINARY(add, a + b)
XPU_SIM_HALF_BINARY(sub, a - b)
XPU_SIM_HALF_BINARY(mul, a* b)
XPU_SIM_HALF_BINARY(max, a > b ? a : b)
XPU_SIM_HALF_BINARY(min, a < b ? a : b)
#undef XPU_SIM_HALF_BINARY

XPU_SIM_SIMD float16x32_t vabs_float16x32(float16x32_t v) { return {v.bits & 0x7FFF}; }

XPU_SIM_SIMD float16x32_t vload_lm_float16x32(const void* p, XPU_SIM_SITE) {
  return {::xpu_sim::detail::load<uint16x32_t>(p, xpu_sim_site)};
}
XPU_SIM_SIMD void vstore_lm_float16x32(void* p, float16x32_t v, XPU_SIM_SITE) {
  ::xpu_sim::detail::store(p, v.bits, xpu_sim_site);
}
