// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random words as a pure
// function of the decision, independent of slot, batch, step number and acceptance history.
#pragma once

#include "specdec/contract.h"
#include "specdec/platform.h"

namespace specdec {

struct PhiloxWords {
  uint32_t w0, w1, w2, w3;

  SPECDEC_HD uint32_t u32() const { return w0; }
  SPECDEC_HD uint64_t u64() const { return static_cast<uint64_t>(w1) << 32 | w0; }
};

SPECDEC_HD PhiloxWords philox4x32_10(PhiloxWords c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(0xD2511F53u) * c.w0;
    const uint64_t b = static_cast<uint64_t>(0xCD9E8D57u) * c.w2;
    c = {static_cast<uint32_t>(b >> 32) ^ c.w1 ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c.w3 ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The words for one decision about the token at `position` of the request with `seed`.
SPECDEC_HD PhiloxWords philox_words(int64_t seed, int64_t position, Purpose purpose, uint32_t index = 0) {
  const uint64_t s = static_cast<uint64_t>(seed), p = static_cast<uint64_t>(position);
  return philox4x32_10(
      {static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), static_cast<uint32_t>(purpose), index},
      static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32));
}

}  // namespace specdec
