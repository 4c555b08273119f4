// Logarithms of integer masses by integer arithmetic: the same digits everywhere, no math library.
#pragma once

#include "specdec/mass.h"
#include "specdec/platform.h"

namespace specdec {

// log2(m) in Q32, in (exact - 2^-31, exact]; m = 0 is taken as 1. One result bit at a time: squaring the mantissa
// doubles the logarithm, and a square that reaches 2 gives a 1.
SPECDEC_HD int64_t log2_q32(uint64_t m) {
  if (m == 0) m = 1;
  const int zeros = count_leading_zeros(m);
  uint64_t x = m << zeros;
  int64_t result = 63 - zeros;
  for (int bit = 0; bit < 32; ++bit) {
    x = mulhi64(x, x);
    const uint64_t carry = x >> 63;
    x <<= 1 - carry;
    result = result << 1 | static_cast<int64_t>(carry);
  }
  return result;
}

// ln(total / 2^40) of a sum of masses, rounded once to float32; 0 for a total below 2^40.
SPECDEC_HD float ln_ratio(uint64_t total) {
  if (total < kMassOne) return 0.0f;
  const uint64_t log2_excess = static_cast<uint64_t>(log2_q32(total) - (int64_t{kMassBits} << 32));
  constexpr uint64_t kLn2Q64 = 0xB17217F7D1CF79ACu;  // round(ln(2) * 2^64)
  return mul_rn(u64_to_f32(mulhi64(log2_excess << 24, kLn2Q64)), 0x1p-56f);
}

}  // namespace specdec
