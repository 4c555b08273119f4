// Operations on whole arrays in LM.
#pragma once

#include "xpu_sim/kernel/arithmetic.h"
#include "xpu_sim/kernel/types.h"

// z[i] = x[i] OP y[i], also in place. The caller fences z.
#define XPU_SIM_ELEMENTWISE(NAME, EXPR)                                     \
  template <class T>                                                        \
  inline void primitive_##NAME(const T* x, const T* y, T* z, long long n) { \
    for (long long i = 0; i < n; ++i) {                                     \
      const T a = x[i], b = y[i];                                           \
      z[i] = static_cast<T>(EXPR);                                          \
    }                                                                       \
  }
XPU_SIM_ELEMENTWISE(add, a + b)
XPU_SIM_ELEMENTWISE(sub, a - b)
XPU_SIM_ELEMENTWISE(mul, a* b)
XPU_SIM_ELEMENTWISE(min, min(a, b))
XPU_SIM_ELEMENTWISE(max, max(a, b))
#undef XPU_SIM_ELEMENTWISE

template <class T>
inline void primitive_constant(T* x, long long n, std::common_type_t<T> value) {
  for (long long i = 0; i < n; ++i) x[i] = value;
}

// Of n >= 1 elements, in their order; a sum of halves is one of floats, rounded once.
template <class T>
inline T primitive_reduce_sum(const T* x, long long n) {
  using Sum = std::conditional_t<std::is_arithmetic_v<T>, T, float>;
  Sum sum = x[0];
  for (long long i = 1; i < n; ++i) sum += static_cast<Sum>(x[i]);
  return static_cast<T>(sum);
}
template <class T>
inline T primitive_reduce_max(const T* x, long long n) {
  T most = x[0];
  for (long long i = 1; i < n; ++i) most = max(most, x[i]);
  return most;
}
template <class T>
inline T primitive_reduce_min(const T* x, long long n) {
  T least = x[0];
  for (long long i = 1; i < n; ++i) least = min(least, x[i]);
  return least;
}
