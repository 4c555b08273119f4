// Integer masses: a weight w in [0, 1] becomes floor(w * 2^40) before anything is summed or compared, so that sums are
// exact in any order. The float32 arithmetic up to there is fixed operation by operation.
#pragma once

#include "specdec/platform.h"

namespace specdec {

constexpr int kMassBits = 40;
constexpr uint64_t kMassOne = uint64_t{1} << kMassBits;
constexpr float kLog2E = 0x1.715476p+0f;

namespace detail {

// floor(x * 2^bits) of the float32 x in [0, 2) with the given bits, 0 <= bits <= 40.
SPECDEC_HD uint64_t floor_scaled(uint32_t x, int bits) {
  // x = mantissa * 2^(exponent - 150). A denormal wrongly gets the leading 1; the shift discards all of it.
  const uint64_t mantissa = static_cast<uint64_t>((x & 0x7FFFFFu) | 0x800000u) << 17;
  const int shift = 167 - bits - static_cast<int>(x >> 23);
  return mantissa >> (shift < 63 ? shift : 63);
}

constexpr uint32_t kOneBits = 0x3F800000u;
constexpr uint32_t kInfBits = 0x7F800000u;

// 2^f for f in [-0.5, 0.5]: minimax in relative error under p(0) = 1; at most 2^-23.39 off, evaluated as here. In two
// parts, for loops: the first half of the polynomial, and the rest.
SPECDEC_HD float exp2_inner(float f) {
  float p = mul_rn(f, 0x1.416b54p-13f);
  p = mul_rn(add_rn(p, 0x1.5f082ep-10f), f);
  return mul_rn(add_rn(p, 0x1.3b2de0p-7f), f);
}
SPECDEC_HD float exp2_outer(float p, float f) {
  p = mul_rn(add_rn(p, 0x1.c6af7cp-5f), f);
  p = mul_rn(add_rn(p, 0x1.ebfbdcp-3f), f);
  p = mul_rn(add_rn(p, 0x1.62e430p-1f), f);
  return add_rn(p, 1.0f);
}
SPECDEC_HD float exp2_polynomial(float f) { return exp2_outer(exp2_inner(f), f); }

// Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the lowest bits.
constexpr float kRounder = 0x1.8p23f;

}  // namespace detail

// Base-2 exponent of a softmax weight: <= 0, or NaN. Exactly 0 at the row's maximum, which may be +inf, as may
// inv_temperature.
SPECDEC_HD float softmax_t(float logit, float row_max, float inv_temperature) {
  const float t = mul_rn(mul_rn(sub_rn(logit, row_max), inv_temperature), kLog2E);
  return f32_from_bits(f32_bits(t) & (static_cast<uint32_t>(logit == row_max) - 1u));
}

// Mass of the weight 2^t for t <= 0; NaN and -inf give 0, t > 0 counts as 0. Clamped as integers, without branches.
SPECDEC_HD uint64_t exp2_mass(float t) {
  const int32_t bits = static_cast<int32_t>(f32_bits(t)), magnitude = bits & 0x7FFFFFFF;
  const int32_t counts = (bits >> 31) | -static_cast<int32_t>(magnitude > static_cast<int32_t>(detail::kInfBits));
  constexpr int32_t k64 = 0x42800000;
  const float x = f32_from_bits(static_cast<uint32_t>((magnitude < k64 ? magnitude : k64) & counts) | 0x80000000u);
  const float n = sub_rn(add_rn(x, detail::kRounder), detail::kRounder);
  const float p = detail::exp2_polynomial(sub_rn(x, n));  // of an exact difference in [-0.5, 0.5]
  // p * 2^(n + 40): add the power of two to the exponent, which stays normal.
  return f32_to_u64(f32_from_bits(f32_bits(p) + (static_cast<uint32_t>(static_cast<int32_t>(n) + kMassBits) << 23)));
}

// A number whose integer part is exp2_mass of t = -64 * depth, for a depth in [0, 1]. Clamping is free on devices with
// saturating multiplications.
constexpr float kDepth = -0x1p-6f;  // depth = kDepth * t, exactly
SPECDEC_HD float exp2_scaled_at(float depth) {
  // The constant is even, so that halves still round to even; n + 40 stands in the lowest bits of the sum.
  constexpr float kRound = 0x1.8p23f + kMassBits;
  const float rounded = fma_exact(depth, -64.0f, kRound);
  const float p = detail::exp2_polynomial(fma_exact(depth, -64.0f, sub_rn(kRound, rounded)));
  return f32_from_bits(f32_bits(p) + (f32_bits(rounded) << 23));
}
SPECDEC_HD uint64_t exp2_mass_at(float depth) { return f32_to_u64(exp2_scaled_at(depth)); }

#if defined(__CUDACC__)
namespace detail {

// A mass on a CUDA device as high * 2^17 + low, by additions that round down: far fewer instructions than 64-bit
// shifts. 1 + w truncates w after bit 23; adding 2^-17 truncates the rest after bit 40. Both are in the mantissas of
// these floats, over the bits kOneBits and kLowBits; the differences are exact.
struct MassBits {
  uint32_t high, low;
};
constexpr uint32_t kLowBits = 0x37000000u;  // of 2^-17
constexpr int kLowMassBits = 17;

__device__ __forceinline__ MassBits mass_bits(float weight) {
  const float w = __saturatef(weight), high = __fadd_rz(w, 1.0f), rest = __fsub_rn(w, __fsub_rn(high, 1.0f));
  return {__float_as_uint(high), __float_as_uint(__fadd_rz(rest, 0x1p-17f))};
}

}  // namespace detail
#endif

// Mass of a probability or weight; NaN and anything <= 0 give 0, >= 1 gives 2^40.
SPECDEC_HD uint64_t prob_mass(float weight) {
#if defined(__CUDA_ARCH__)
  const detail::MassBits bits = detail::mass_bits(weight);
  return static_cast<uint64_t>(bits.high - detail::kOneBits) * (1u << detail::kLowMassBits) +
         (bits.low - detail::kLowBits);
#else
  const uint32_t x = f32_bits(weight);  // as integers: no dependence on a device's treatment of denormals
  if (x > detail::kInfBits) return 0;   // NaN, or the sign bit
  return x >= detail::kOneBits ? kMassOne : detail::floor_scaled(x, kMassBits);
#endif
}

// Mass of a fraction that a request asks for (top_p): as prob_mass, but NaN counts as 1, as in threshold.
SPECDEC_HD uint64_t fraction_mass(float fraction) {
  return (f32_bits(fraction) & 0x7FFFFFFFu) > detail::kInfBits ? kMassOne : prob_mass(fraction);
}

// floor(fraction * 2^24) * total >> 24, exactly, for any total; fraction is clamped to [0, 1], NaN counts as 1.
SPECDEC_HD uint64_t mass_threshold(float fraction, uint64_t total) {
  const uint32_t x = f32_bits(fraction), magnitude = x & 0x7FFFFFFFu;
  if (magnitude > detail::kInfBits) return total;
  if (x != magnitude) return 0;
  if (x >= detail::kOneBits) return total;
  const uint64_t steps = detail::floor_scaled(x, 24);
  // total = high * 2^24 + low: both products fit 64 bits, and the first has no part to round off.
  return steps * (total >> 24) + (steps * (total & 0xFFFFFFu) >> 24);
}

// mass / total as a float32 probability; 0 for total 0.
SPECDEC_HD float mass_ratio(uint64_t mass, uint64_t total) {
  return total == 0 ? 0.0f : div_rn(u64_to_f32(mass), u64_to_f32(total));
}

// mass_ratio of many masses to one total. Two corrections turn the rounded reciprocal into the rounded quotient (P.
// Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990, theorem 8), without
// denormals: masses are 0 or in [1, 2^40], and a total is below 2^58.
struct MassRatio {
  float total, inverse;

  SPECDEC_HD explicit MassRatio(uint64_t of) : total(u64_to_f32(of > 0 ? of : 1)), inverse(div_rn(1.0f, total)) {}
  // A mass as a float, which is exact: it is the integer part of one.
  SPECDEC_HD float of(float mass) const {
    const float about = mul_rn(mass, inverse), near = fma_rn(fma_rn(-total, about, mass), inverse, about);
    return fma_rn(fma_rn(-total, near, mass), inverse, near);
  }
};

}  // namespace specdec
