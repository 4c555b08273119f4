// Conversion of arrays in LM, SM or GSM, in place if wanted.
#pragma once

#include <cstdint>

#include "xpu_sim/kernel/convert.h"
#include "xpu_sim/kernel/dma.h"
#include "xpu_sim/kernel/sync.h"
#include "xpu_sim/site.h"

namespace xpu_sim::detail {

// The device converts in whole steps, which read and write elements past n. They are left alone here, where they may be
// a neighbour's, and checking builds ask for the room.
void cast_needs_room(const void* from, long long from_bytes, void* to, long long to_bytes, Site site);

// How many elements a step has: 128 of int64 and 16 to int64, 64 of bytes, else 32; a plain copy has no steps.
template <class A, class B>
constexpr long long cast_step() {
  constexpr size_t least = sizeof(A) < sizeof(B) ? sizeof(A) : sizeof(B);
  return std::is_same_v<A, B> ? 1 : sizeof(A) == 8 ? 128 : sizeof(B) == 8 ? 16 : least == 1 ? 64 : 32;
}

// Where an unordered cast from 16 to 32 bits puts element i of a step: those at even places come first, as with
// unordered loads of vectors. The way back undoes it.
constexpr long long unordered_position(long long i) { return i % 2 * 16 + i / 2; }

template <bool UNORDERED = false, class A, class B>
inline __attribute__((always_inline)) void cast_array(const char* name, const A* x, B* y, long long n, Site site) {
  constexpr long long kStep = cast_step<A, B>();
  const long long whole = (n + kStep - 1) / kStep * kStep;
#if defined(XPU_SIM_STRICT)
  need_room(name, x, whole * static_cast<long long>(sizeof(A)), site);
  need_room(name, y, whole * static_cast<long long>(sizeof(B)), site);
#else
  (void)name;
#endif
  cast_needs_room(x, whole * static_cast<long long>(sizeof(A)), y, whole * static_cast<long long>(sizeof(B)), site);
  const auto one = [x](long long i) __attribute__((always_inline)) {
    A a;
    std::memcpy(&a, x + i, sizeof a);
    return converted<B>(a);
  };
  if constexpr (std::is_same_v<A, B>) {
    if (x != y) std::memmove(y, x, static_cast<size_t>(n < 0 ? 0 : n) * sizeof(A));
    return;
  }
  // In place: widening must not overwrite what it has yet to read, so it walks backwards.
  constexpr bool kBackwards = sizeof(B) > sizeof(A);
  if constexpr (!UNORDERED) {
    for (long long k = 0; k < n; ++k) {
      const long long i = kBackwards ? n - 1 - k : k;
      const B b = one(i);
      std::memcpy(y + i, &b, sizeof b);
    }
  } else {
    for (long long k = 0; k < whole; k += kStep) {
      const long long first = kBackwards ? whole - kStep - k : k, count = n - first < kStep ? n - first : kStep;
      B step[static_cast<size_t>(kStep)];
      for (long long i = 0; i < count; ++i) {
        const long long position = count < kStep ? i : unordered_position(i);
        step[kBackwards ? position : i] = one(first + (kBackwards ? i : position));
      }
      std::memcpy(y + first, step, static_cast<size_t>(count) * sizeof(B));
    }
  }
}

template <class T>
constexpr bool is_signed_64() {
  return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 8;
}

// The pairs of types that the vendor's public header has a specialisation of; its template returns at once for others.
// Between any two of float, float16, int, int8 and uint8, a float or half also to itself; between float and bfloat16,
// and between int64 and int.
template <class A, class B>
constexpr bool is_cast_pair() {
  constexpr auto common = [](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    return std::is_same_v<T, float> || std::is_same_v<T, float16> || std::is_same_v<T, int> ||
           std::is_same_v<T, int8_t> || std::is_same_v<T, uint8_t>;
  };
  constexpr auto is_pair = [](auto* a, auto* b) {
    using X = std::remove_pointer_t<decltype(a)>;
    using Y = std::remove_pointer_t<decltype(b)>;
    return (std::is_same_v<X, float> && std::is_same_v<Y, bfloat16>) || (std::is_same_v<X, int> && is_signed_64<Y>());
  };
  constexpr A* a = nullptr;
  constexpr B* b = nullptr;
  if (std::is_same_v<A, B>) return std::is_same_v<A, float> || std::is_same_v<A, float16>;
  return (common(a) && common(b)) || is_pair(a, b) || is_pair(b, a);
}
[[gnu::warning("primitive_cast: the vendor's header does not convert between these types: nothing is done")]]
void no_such_cast();

}  // namespace xpu_sim::detail

// Each ends with the fence of its memory. _gsm fences LM, which the group's memory is a part of.
#define XPU_SIM_CAST(NAME, FENCE, UNORDERED)                                                                \
  template <class A, class B>                                                                               \
  inline __attribute__((always_inline)) void NAME(const A* x, B* y, long long n, XPU_SIM_SITE) {            \
    if constexpr (::xpu_sim::detail::is_cast_pair<A, B>()) {                                                \
      ::xpu_sim::detail::cast_array<UNORDERED && sizeof(A) + sizeof(B) == 6>(#NAME, x, y, n, xpu_sim_site); \
      FENCE(xpu_sim_site);                                                                                  \
    } else {                                                                                                \
      ::xpu_sim::detail::no_such_cast();                                                                    \
    }                                                                                                       \
  }
XPU_SIM_CAST(primitive_cast, mfence_lm, false)
XPU_SIM_CAST(primitive_cast_sm, mfence_sm, false)
XPU_SIM_CAST(primitive_cast_gsm, mfence_lm, false)
XPU_SIM_CAST(primitive_cast_sm2lm, mfence, false)
// The elements of a whole step may change places; the way back undoes it.
XPU_SIM_CAST(primitive_cast_unordered, mfence_lm, true)
XPU_SIM_CAST(primitive_cast_unordered_sm, mfence_sm, true)
#undef XPU_SIM_CAST

// Between 16 and 32 bits: of the 32-bit elements, which have room for buf_len, the first half is of the even places of
// the others, and the second half of the odd ones. In place too.
template <class A, class B>
inline __attribute__((always_inline)) void primitive_cast_unordered2(const A* x, B* y, long long n, long long buf_len,
                                                                     XPU_SIM_SITE) {
  static_assert(sizeof(A) + sizeof(B) == 6 && ::xpu_sim::detail::is_cast_pair<A, B>(),
                "float, and float16 or bfloat16");
  constexpr bool kWidens = sizeof(B) == 4;
  const long long whole = (n + 31) / 32 * 32, wide = (buf_len + whole) / 2;  // elements to the end of the last step
  const long long x_bytes = 2 * (kWidens ? whole : 2 * wide), y_bytes = 2 * (kWidens ? 2 * wide : whole);
#if defined(XPU_SIM_STRICT)
  ::xpu_sim::detail::need_room(__func__, x, x_bytes, xpu_sim_site);
  ::xpu_sim::detail::need_room(__func__, y, y_bytes, xpu_sim_site);
#endif
  ::xpu_sim::detail::cast_needs_room(x, x_bytes, y, y_bytes, xpu_sim_site);
  for (long long at = 0; at < n; at += 32) {
    A from[32];
    B to[32];
    const long long count = n - at < 32 ? n - at : 32;
    const auto place = [&](long long i, bool is_wide) {
      return is_wide ? (at + i) / 2 + i % 2 * (buf_len / 2) : at + i;
    };
    for (long long i = 0; i < count; ++i) std::memcpy(&from[i], x + place(i, !kWidens), sizeof(A));
    for (long long i = 0; i < count; ++i) to[i] = ::xpu_sim::detail::converted<B>(from[i]);
    for (long long i = 0; i < count; ++i) std::memcpy(y + place(i, kWidens), &to[i], sizeof(B));
  }
  mfence_lm(xpu_sim_site);
}

// The same of arrays as of one number in math.h.
#define XPU_SIM_CONVERSION(NAME, A, B)                                                           \
  inline __attribute__((always_inline)) void NAME(const A* x, B* y, long long n, XPU_SIM_SITE) { \
    ::xpu_sim::detail::cast_array(#NAME, x, y, n, xpu_sim_site);                                 \
    mfence_lm(xpu_sim_site);                                                                     \
  }
XPU_SIM_CONVERSION(float162float, float16, float)
XPU_SIM_CONVERSION(bfloat162float, bfloat16, float)
XPU_SIM_CONVERSION(float2float16, float, float16)
XPU_SIM_CONVERSION(float2bfloat16, float, bfloat16)
#undef XPU_SIM_CONVERSION
