// e^x in float32, with the same bits everywhere.
#pragma once

#include "specdec/mass.h"

namespace specdec {

// Within a factor of 1 +- 2^-22.5 for x in [-87, 88]; inf above, 0 below, NaN for NaN.
SPECDEC_HD float exp_f32(float x) {
  const bool inside = x >= -87.0f && x <= 88.0f;
  const float y = inside ? x : 0.0f;
  const float n = sub_rn(add_rn(mul_rn(y, kLog2E), detail::kRounder), detail::kRounder);
  // ln(2) in two parts; n times the first is exact.
  const float rest = sub_rn(sub_rn(y, mul_rn(n, 0x1.62e4p-1f)), mul_rn(n, 0x1.7f7d1cp-20f));
  const uint32_t p = f32_bits(detail::exp2_polynomial(mul_rn(rest, kLog2E)));
  const float power = f32_from_bits(p + (static_cast<uint32_t>(static_cast<int32_t>(n)) << 23));
  const float edge = x > 88.0f ? f32_from_bits(detail::kInfBits) : x < -87.0f ? 0.0f : x;
  return inside ? power : edge;
}

}  // namespace specdec
