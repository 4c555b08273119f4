// Seeds that advance with each step, as FastDeploy's do (contract, section 3).
#pragma once

#include "specdec/integers.h"

namespace specdec {

// (seed + step * count) mod modulus, in [0, modulus); the sum wraps at 64 bits.
SPECDEC_HD int64_t advanced_seed(int64_t seed, int64_t step, int64_t count, int64_t modulus) {
  const int64_t offset = static_cast<int64_t>(static_cast<uint64_t>(step) * static_cast<uint64_t>(count));
  const int64_t rest = wrap_add(seed, offset) % modulus;
  return rest < 0 ? rest + modulus : rest;
}

}  // namespace specdec
