// One number of another type, as the device's casts convert it.
#pragma once

#include <limits>

#include "xpu_sim/kernel/types.h"

namespace xpu_sim::detail {

// Toward zero (vfloat2fix.rz). Beyond the range: its end; NaN: 0.
template <class B>
inline B truncated(float x) {
  // As floats, of which the largest integer may be none: the first value beyond.
  constexpr float kEnd = static_cast<float>(std::numeric_limits<B>::max() / 2 + 1) * 2.0f;
  if (x != x) return 0;
  if (x >= kEnd) return std::numeric_limits<B>::max();
  if (x <= static_cast<float>(std::numeric_limits<B>::min())) return std::numeric_limits<B>::min();
  return static_cast<B>(x);
}

// Wider integers become bytes clamped, and other integers keep their lower bits; floats become integers toward zero and
// bfloat16 by their upper half; all others are rounded to the nearest, ties to even.
template <class B, class A>
inline B converted(A x) {
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B> && sizeof(A) > sizeof(B) && sizeof(B) == 1) {
    constexpr A kLow = std::numeric_limits<B>::min(), kHigh = std::numeric_limits<B>::max();
    return static_cast<B>(x < kLow ? kLow : x > kHigh ? kHigh : x);
  } else if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
    return static_cast<B>(x);
  } else if constexpr (std::is_integral_v<B>) {
    return truncated<B>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<B, bfloat16> && !std::is_same_v<A, bfloat16>) {
    B y;
    y.bits = static_cast<uint16_t>(bits::of_float(static_cast<float>(x)) >> 16);
    return y;
  } else if constexpr (std::is_same_v<A, B>) {
    return x;
  } else {
    return static_cast<B>(static_cast<float>(x));
  }
}

}  // namespace xpu_sim::detail
