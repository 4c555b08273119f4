// Small arithmetic helpers. min and max take mixed types, unlike the standard library's, and are found without std::.
#pragma once

#include <cstdint>

#include "xpu_sim/kernel/types.h"

namespace xpu_sim::detail {

// float16 and bfloat16 are compared as float: each converts to the other's kind, so ?: would be ambiguous.
template <class T>
struct Compared {
  using type = T;
};
template <>
struct Compared<float16> {
  using type = float;
};
template <>
struct Compared<bfloat16> {
  using type = float;
};

template <class A, class B>
struct Common {
  using type = std::common_type_t<typename Compared<A>::type, typename Compared<B>::type>;
};
template <class T>
struct Common<T, T> {
  using type = T;
};

}  // namespace xpu_sim::detail

template <class A, class B>
constexpr typename xpu_sim::detail::Common<A, B>::type min(A a, B b) {
  using T = typename xpu_sim::detail::Common<A, B>::type;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  return y < x ? y : x;
}

template <class A, class B>
constexpr typename xpu_sim::detail::Common<A, B>::type max(A a, B b) {
  using T = typename xpu_sim::detail::Common<A, B>::type;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  return x < y ? y : x;
}

template <class A, class B>
constexpr std::common_type_t<A, B> roundup_div(A a, B b) {
  return (a + b - 1) / b;
}

template <class A, class B>
constexpr std::common_type_t<A, B> rounddown_div(A a, B b) {
  return a / b;
}

template <class A, class B>
constexpr std::common_type_t<A, B> roundup(A a, B b) {
  return (a + b - 1) / b * b;
}

template <class A, class B>
constexpr std::common_type_t<A, B> rounddown(A a, B b) {
  return a / b * b;
}

#define XPU_SIM_ROUNDING(N)       \
  template <class T>              \
  constexpr T rounddown##N(T n) { \
    return n / N * N;             \
  }                               \
  template <class T>              \
  constexpr T roundup##N(T n) {   \
    return (n + N - 1) / N * N;   \
  }
XPU_SIM_ROUNDING(4)
XPU_SIM_ROUNDING(8)
XPU_SIM_ROUNDING(16)
XPU_SIM_ROUNDING(32)
XPU_SIM_ROUNDING(64)
XPU_SIM_ROUNDING(128)
#undef XPU_SIM_ROUNDING
