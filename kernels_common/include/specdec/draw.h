// Decisions between integer masses.
#pragma once

#include "specdec/platform.h"

namespace specdec {

// The point of a draw in [0, total): the first index whose inclusive prefix sum exceeds it wins.
SPECDEC_HD uint64_t draw_point(uint64_t u64, uint64_t total) { return mulhi64(u64, total); }

// Serial draw from `count` masses in order; -1 if they total 0.
SPECDEC_HD int64_t draw(uint64_t u64, const uint64_t* masses, int64_t count) {
  uint64_t total = 0;
  for (int64_t v = 0; v < count; ++v) total += masses[v];
  const uint64_t point = draw_point(u64, total);
  uint64_t sum = 0;
  for (int64_t v = 0; v < count; ++v) {
    sum += masses[v];
    if (sum > point) return v;
  }
  return -1;
}

// Whether a draft of draft mass q and target mass p is accepted: (u32 * q) >> 32 < p, exactly.
SPECDEC_HD bool accept_test(uint32_t u32, uint64_t q_mass, uint64_t p_mass) {
  return mulhi64(static_cast<uint64_t>(u32) << 32, q_mass) < p_mass;
}

}  // namespace specdec
