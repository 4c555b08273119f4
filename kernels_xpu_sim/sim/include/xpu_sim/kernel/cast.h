// Conversion of arrays in LM, SM or GSM, in place if wanted.
#pragma once

#include <cmath>

#include "xpu_sim/kernel/dma.h"
#include "xpu_sim/kernel/types.h"
#include "xpu_sim/site.h"

namespace xpu_sim::detail {

// The device converts whole vectors: up to 31 elements past n are read and written. They are left alone here, where
// they may be a neighbour's, and checking builds ask for the room.
void cast_needs_room(const void* from, long long from_bytes, void* to, long long to_bytes, Site site);

template <class B, class A>
inline B converted(A x) {
  if constexpr (std::is_integral_v<B> && !std::is_integral_v<A>) {
    return static_cast<B>(std::nearbyint(static_cast<float>(x)));
  } else if constexpr (std::is_arithmetic_v<A> && std::is_arithmetic_v<B>) {
    return static_cast<B>(x);
  } else if constexpr (std::is_same_v<A, B>) {
    return x;
  } else {
    return static_cast<B>(static_cast<float>(x));
  }
}

template <class A, class B>
inline __attribute__((always_inline)) void cast_array(const char* name, const A* x, B* y, long long n, Site site) {
  const long long whole = (n + 31) / 32 * 32;
#if defined(XPU_SIM_STRICT)
  need_room(name, x, whole * static_cast<long long>(sizeof(A)), site);
  need_room(name, y, whole * static_cast<long long>(sizeof(B)), site);
#else
  (void)name;
#endif
  cast_needs_room(x, whole * static_cast<long long>(sizeof(A)), y, whole * static_cast<long long>(sizeof(B)), site);
  // In place: widening must not overwrite what it has yet to read, so it walks backwards.
  if constexpr (sizeof(B) > sizeof(A)) {
    for (long long i = n - 1; i >= 0; --i) {
      A a;
      std::memcpy(&a, x + i, sizeof a);
      const B b = converted<B>(a);
      std::memcpy(y + i, &b, sizeof b);
    }
  } else {
    for (long long i = 0; i < n; ++i) {
      A a;
      std::memcpy(&a, x + i, sizeof a);
      const B b = converted<B>(a);
      std::memcpy(y + i, &b, sizeof b);
    }
  }
}

}  // namespace xpu_sim::detail

template <class A, class B>
inline __attribute__((always_inline)) void primitive_cast(const A* x, B* y, long long n, XPU_SIM_SITE) {
  ::xpu_sim::detail::cast_array("primitive_cast", x, y, n, xpu_sim_site);
}

template <class A, class B>
inline __attribute__((always_inline)) void primitive_cast_sm(const A* x, B* y, long long n, XPU_SIM_SITE) {
  ::xpu_sim::detail::cast_array("primitive_cast_sm", x, y, n, xpu_sim_site);
}

template <class A, class B>
inline __attribute__((always_inline)) void primitive_cast_gsm(const A* x, B* y, long long n, XPU_SIM_SITE) {
  ::xpu_sim::detail::cast_array("primitive_cast_gsm", x, y, n, xpu_sim_site);
}

// One number, or an array of them like primitive_cast.
inline float float162float(float16 x) { return x; }
inline float bfloat162float(bfloat16 x) { return x; }
inline float16 float2float16(float x) { return x; }
inline bfloat16 float2bfloat16(float x) { return x; }
#define XPU_SIM_CONVERSION(NAME, A, B)                                                           \
  inline __attribute__((always_inline)) void NAME(const A* x, B* y, long long n, XPU_SIM_SITE) { \
    ::xpu_sim::detail::cast_array(#NAME, x, y, n, xpu_sim_site);                                 \
  }
XPU_SIM_CONVERSION(float162float, float16, float)
XPU_SIM_CONVERSION(bfloat162float, bfloat16, float)
XPU_SIM_CONVERSION(float2float16, float, float16)
XPU_SIM_CONVERSION(float2bfloat16, float, bfloat16)
#undef XPU_SIM_CONVERSION
