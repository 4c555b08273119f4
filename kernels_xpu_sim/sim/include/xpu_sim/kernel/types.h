// Scalar types that a host compiler lacks, and xpu_std.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace xpu_sim::bits {

inline uint32_t of_float(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

inline float to_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

// Round to nearest even; a NaN keeps its sign and becomes quiet.
inline uint16_t bfloat16_of(float x) {
  const uint32_t u = of_float(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
  return static_cast<uint16_t>((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

inline uint16_t half_of(float x) {
  const uint32_t u = of_float(x), sign = u >> 16 & 0x8000u, a = u & 0x7FFFFFFFu;
  if (a >= 0x7F800000u) return static_cast<uint16_t>(sign | 0x7C00u | (a > 0x7F800000u ? 0x200u : 0u));
  if (a >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to 2^16 or beyond
  if (a < 0x38800000u) {  // subnormal: adding 0.5 lets the FPU round at bit 2^-24
    return static_cast<uint16_t>(sign | (of_float(to_float(a) + 0.5f) - 0x3F000000u));
  }
  return static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xFFFu + (a >> 13 & 1u)) >> 13));
}

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3FFu;
  if (exponent == 31) return to_float(sign | 0x7F800000u | mantissa << 13);
  if (exponent != 0) return to_float(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return to_float(sign | of_float(magnitude));
}

// Toward zero; beyond the range, the largest finite one.
inline uint16_t half_toward_zero(float x) {
  const uint16_t nearest = half_of(x);
  const uint32_t a = of_float(x) & 0x7FFFFFFFu, rounded = of_float(half_to_float(nearest)) & 0x7FFFFFFFu;
  // The bits of halves are in the order of their magnitudes.
  return static_cast<uint16_t>(a < 0x7F800000u && rounded > a ? nearest - 1 : nearest);
}

}  // namespace xpu_sim::bits

// Both are trivial, so that arrays of them, also of run-time length, cost nothing and start uninitialised as in LM.
#define XPU_SIM_NARROW_FLOAT(NAME, NARROW, WIDEN)                                     \
  struct NAME {                                                                       \
    uint16_t bits;                                                                    \
    NAME() = default;                                                                 \
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>             \
    NAME(T x) : bits(NARROW(static_cast<float>(x))) {}                                \
    operator float() const { return WIDEN; }                                          \
    NAME& operator+=(float x) { return *this = NAME(static_cast<float>(*this) + x); } \
    NAME& operator-=(float x) { return *this = NAME(static_cast<float>(*this) - x); } \
    NAME& operator*=(float x) { return *this = NAME(static_cast<float>(*this) * x); } \
    NAME& operator/=(float x) { return *this = NAME(static_cast<float>(*this) / x); } \
  };                                                                                  \
  static_assert(std::is_trivial_v<NAME> && sizeof(NAME) == 2)

XPU_SIM_NARROW_FLOAT(float16, ::xpu_sim::bits::half_of, ::xpu_sim::bits::half_to_float(bits));
XPU_SIM_NARROW_FLOAT(bfloat16, ::xpu_sim::bits::bfloat16_of,
                     ::xpu_sim::bits::to_float(static_cast<uint32_t>(bits) << 16));
#undef XPU_SIM_NARROW_FLOAT

using half = float16;
using bfloat16_t = bfloat16;

// A signed integer of 4 bits in a byte of its own; values wrap. Two in a byte are the kernel's own packing.
struct int4_t {
  int8_t value;
  int4_t() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  int4_t(T x) : value(static_cast<int8_t>(((static_cast<int>(x) & 15) ^ 8) - 8)) {}
  operator int() const { return value; }
};
static_assert(std::is_trivial_v<int4_t> && sizeof(int4_t) == 1);

namespace xpu_std {
using std::conditional;
using std::enable_if;
using std::false_type;
using std::integral_constant;
using std::is_floating_point;
using std::is_integral;
using std::is_same;
using std::remove_cv;
using std::remove_reference;
using std::true_type;
}  // namespace xpu_std
