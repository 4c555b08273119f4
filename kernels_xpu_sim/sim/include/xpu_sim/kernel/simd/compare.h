// Comparisons: bit i of the result belongs to lane i. A scalar is the left operand: svle is s <= v[i].
#pragma once

#include "xpu_sim/kernel/simd/types.h"

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
