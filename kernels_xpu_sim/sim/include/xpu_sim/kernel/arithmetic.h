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

// Splitting work over cores.
// The part [*start, *end) of [0, len) that is `tid`'s, of `nthreads`: contiguous blocks of `align`, the remainder to
// the low ids.
template <class TID>
inline void partition(int tid, int nthreads, TID len, int align, TID* start, TID* end) {
  const TID blocks = roundup_div(len, static_cast<TID>(align)), each = blocks / nthreads, more = blocks % nthreads;
  const TID first = tid * each + (tid < more ? static_cast<TID>(tid) : more);
  const TID last = first + each + (tid < more ? 1 : 0);
  *start = min(first * align, len);
  *end = min(last * align, len);
}

// The rectangle of an m x n matrix that is `tid`'s. Of the ways to arrange the threads in a grid it takes the one with
// the least to move by the busiest thread: `reuse` weighs the rows' own data, a transfer costs at least `burst` bytes.
template <class TID>
inline void partition2d(int tid, int nthreads, TID m, TID n, TID* m_start, TID* m_end, TID* n_start, TID* n_end,
                        float reuse = 0.0f, float burst = 512.0f) {
  int rows = nthreads;
  float best = -1.0f;
  for (int r = nthreads; r >= 1; --r) {
    if (nthreads % r != 0) continue;
    const float height = static_cast<float>(roundup_div(m, static_cast<TID>(r)));
    const float width = static_cast<float>(roundup_div(n, static_cast<TID>(nthreads / r))) * sizeof(float);
    const float cost = height * max(width, burst) + reuse * (height + width);
    if (best < 0.0f || cost < best) {
      best = cost;
      rows = r;
    }
  }
  const int columns = nthreads / rows;
  partition(tid / columns, rows, m, 1, m_start, m_end);
  partition(tid % columns, columns, n, 1, n_start, n_end);
}

// How many elements of a one-dimensional tile each of `nthreads` should take: all of them busy, whole vectors of 64, at
// most `most`.
template <class TID>
inline int get_1d_buflen(TID len, int nthreads, int most, int align = 64) {
  const TID each = roundup(roundup_div(len, static_cast<TID>(nthreads)), static_cast<TID>(align));
  return static_cast<int>(min(each, static_cast<TID>(most)));
}
