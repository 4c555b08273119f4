// The floats of a row: widened exactly, rounded back, and as integer keys that order as the contract orders logits.
#pragma once

#include "specdec/contract.h"
#include "specdec/platform.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace specdec {

// Keys: a larger float has a larger key, equal floats (-0 and +0 too) have equal keys, every NaN has kKeyNan.
constexpr int32_t kKeyInf = 0x7F800000;
constexpr int32_t kKeyNan = 0x7FFFFFFF;

SPECDEC_HD int32_t order_key(float x) {
  const int32_t bits = static_cast<int32_t>(f32_bits(x));
  const int32_t magnitude = bits & 0x7FFFFFFF, sign = bits >> 31;
  return magnitude > kKeyInf ? kKeyNan : (magnitude ^ sign) - sign;
}

// The float of a key; +0 for the key of both zeros.
SPECDEC_HD float key_value(int32_t key) {
  return f32_from_bits(key < 0 ? 0x80000000u | static_cast<uint32_t>(-key) : static_cast<uint32_t>(key));
}

SPECDEC_HD float bf16_to_f32(uint16_t bits) { return f32_from_bits(static_cast<uint32_t>(bits) << 16); }

SPECDEC_HD float f16_to_f32(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));  // one instruction
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu, fraction = bits & 0x3FFu;
  if (exponent == 0) {  // zero or denormal: fraction * 2^-24 is a normal float32
    const float magnitude = mul_rn(static_cast<float>(fraction), 0x1p-24f);
    return f32_from_bits(f32_bits(magnitude) | sign);
  }
  // Infinity and NaN keep the largest exponent; others change bias from 15 to 127.
  const uint32_t widened = exponent == 31 ? 255u : exponent + 112u;
  return f32_from_bits(sign | widened << 23 | fraction << 13);
#endif
}

SPECDEC_HD uint16_t f32_to_bf16(float x) {
  const uint32_t bits = f32_bits(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + ((bits >> 16 & 1u) + 0x7FFFu)) >> 16);
}

SPECDEC_HD uint16_t f32_to_f16(float x) {
  const uint32_t bits = f32_bits(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 2^16 and more
  // Normal halves keep 10 of 23 fraction bits; below 2^-14 one more bit is lost with every power of two.
  const int exponent = static_cast<int>(magnitude >> 23);
  const int lost = exponent >= 113 ? 13 : 126 - exponent;
  if (lost > 24) return static_cast<uint16_t>(sign);  // below half the smallest denormal
  const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
  const uint32_t whole = mantissa >> lost, rest = mantissa & ((1u << lost) - 1u), half = 1u << (lost - 1);
  const uint32_t rounded = whole + (rest > half || (rest == half && (whole & 1u)) ? 1u : 0u);
  // The leading one of a normal half adds 1 to the exponent; a carry out of the fraction goes there by itself.
  return static_cast<uint16_t>(sign | (rounded + (exponent >= 113 ? static_cast<uint32_t>(exponent - 113) << 10 : 0u)));
}

// Element types of rows: `Bits` in memory, `widen` to float32 and `narrow` back, to nearest even.
struct Float32 {
  using Bits = float;
  static SPECDEC_HD float widen(float x) { return x; }
  static SPECDEC_HD float narrow(float x) { return x; }
};

struct Float16 {
  using Bits = uint16_t;
  static SPECDEC_HD float widen(uint16_t x) { return f16_to_f32(x); }
  static SPECDEC_HD uint16_t narrow(float x) { return f32_to_f16(x); }
};

struct BFloat16 {
  using Bits = uint16_t;
  static SPECDEC_HD float widen(uint16_t x) { return bf16_to_f32(x); }
  static SPECDEC_HD uint16_t narrow(float x) { return f32_to_bf16(x); }
};

// body(Float32{} | Float16{} | BFloat16{})
template <typename Body>
void with_float_type(FloatType type, Body body) {
  switch (type) {
    case FloatType::kFloat32: return body(Float32{});
    case FloatType::kFloat16: return body(Float16{});
    case FloatType::kBfloat16: return body(BFloat16{});
  }
}

// Probabilities: NaN counts as 0.
struct Probability {
  using Bits = float;
  static SPECDEC_HD float widen(float x) { return order_key(x) == kKeyNan ? 0.0f : x; }
};

}  // namespace specdec
