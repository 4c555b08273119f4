// Operations on whole arrays in LM. Each ends with the fence of LM.
#pragma once

#include <cmath>

#include "xpu_sim/kernel/arithmetic.h"
#include "xpu_sim/kernel/sync.h"
#include "xpu_sim/kernel/types.h"

// z[i] = x[i] OP y[i], or s OP y[i], also in place.
#define XPU_SIM_ELEMENTWISE(NAME, EXPR)                                                   \
  template <class T>                                                                      \
  inline void primitive_##NAME(const T* x, const T* y, T* z, long long n, XPU_SIM_SITE) { \
    for (long long i = 0; i < n; ++i) {                                                   \
      const T a = x[i], b = y[i];                                                         \
      z[i] = static_cast<T>(EXPR);                                                        \
    }                                                                                     \
    mfence_lm(xpu_sim_site);                                                              \
  }                                                                                       \
  template <class T>                                                                      \
  inline void primitive_##NAME(T s, const T* y, T* z, long long n, XPU_SIM_SITE) {        \
    for (long long i = 0; i < n; ++i) {                                                   \
      const T a = s, b = y[i];                                                            \
      z[i] = static_cast<T>(EXPR);                                                        \
    }                                                                                     \
    mfence_lm(xpu_sim_site);                                                              \
  }
XPU_SIM_ELEMENTWISE(add, a + b)
XPU_SIM_ELEMENTWISE(sub, a - b)
XPU_SIM_ELEMENTWISE(mul, a* b)
XPU_SIM_ELEMENTWISE(div, a / b)
XPU_SIM_ELEMENTWISE(min, min(a, b))
XPU_SIM_ELEMENTWISE(max, max(a, b))
#undef XPU_SIM_ELEMENTWISE

// y[i] = f(x[i]), also in place.
#define XPU_SIM_UNARY(NAME, EXPR)                                             \
  template <class T>                                                          \
  inline void primitive_##NAME(const T* x, T* y, long long n, XPU_SIM_SITE) { \
    for (long long i = 0; i < n; ++i) {                                       \
      const float a = static_cast<float>(x[i]);                               \
      y[i] = static_cast<T>(EXPR);                                            \
    }                                                                         \
    mfence_lm(xpu_sim_site);                                                  \
  }
XPU_SIM_UNARY(exp, std::exp(a))
XPU_SIM_UNARY(exp_with_clip, std::exp(max(-87.0f, min(a, 88.0f))))  // a finite number above 0
XPU_SIM_UNARY(log, std::log(a))
XPU_SIM_UNARY(sqrt, std::sqrt(a))
#undef XPU_SIM_UNARY

template <class T>
inline void primitive_constant(std::common_type_t<T> value, T* y, long long n, XPU_SIM_SITE) {
  for (long long i = 0; i < n; ++i) y[i] = value;
  mfence_lm(xpu_sim_site);
}

// *y = the sum, the least, the largest or the product of n elements. A sum has 16 lanes over blocks of 32 elements,
// whose two halves are added; then ((0 + 1) + (2 + 3)) by four lanes; then what is left of n.
namespace xpu_sim::detail {

template <class F, class T>
inline float reduced(const T* x, long long n, float none, F f) {
  float lanes[16], result = none;
  const long long whole = n / 32 * 32;
  for (float& lane : lanes) lane = none;
  for (long long i = 0; i < whole; ++i) lanes[i % 16] = f(lanes[i % 16], static_cast<float>(x[i]));
  if (whole > 0) {
    float four[4];
    for (int k = 0; k < 4; ++k) four[k] = f(f(lanes[k], lanes[4 + k]), f(lanes[8 + k], lanes[12 + k]));
    result = f(f(four[0], four[1]), f(four[2], four[3]));
  }
  for (long long i = whole; i < n; ++i) result = f(result, static_cast<float>(x[i]));
  return result;
}

}  // namespace xpu_sim::detail

#define XPU_SIM_REDUCTION(NAME, NONE, EXPR)                                                                 \
  template <class T>                                                                                        \
  inline void primitive_reduce_##NAME(const T* x, float* y, long long n, XPU_SIM_SITE) {                    \
    *y = ::xpu_sim::detail::reduced(x, n, NONE, [](float a, float b) { return static_cast<float>(EXPR); }); \
    mfence_lm(xpu_sim_site);                                                                                \
  }
XPU_SIM_REDUCTION(sum, 0.0f, a + b)
XPU_SIM_REDUCTION(prod, 1.0f, a* b)
XPU_SIM_REDUCTION(min, 1e38f, min(a, b))
XPU_SIM_REDUCTION(max, -1e38f, max(a, b))
#undef XPU_SIM_REDUCTION
