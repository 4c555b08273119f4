// Rows of the draft model, and a slot's reported tokens (contract, section 7).
#pragma once

#include "specdec/integers.h"

namespace specdec {

// `next`: rows of the draft model. `batch`: reported tokens; the first of a prefilled slot is the target's.
struct DraftShare {
  int64_t next, batch;

  SPECDEC_HD bool has_first() const { return batch > next; }
};

SPECDEC_HD DraftShare draft_share(int32_t slt, int32_t enc, int64_t row_count) {
  if (enc > 0) return {1, 2};
  const int64_t rows = clamp64(slt, 0, row_count);
  return {rows, rows};
}

// Positions of a slot's draft-model rows in either order: `count` of them, within both capacities.
struct DraftRows {
  int64_t source, target, count;
};

// `next`, `batch`: sums over the previous slots.
SPECDEC_HD DraftRows draft_rows(const DraftShare& share, int64_t next, int64_t batch, int64_t row_count,
                                int64_t capacity) {
  const int64_t target = batch + share.has_first();
  return {next, target, max64(min64(share.next, min64(row_count - next, capacity - target)), 0)};
}

}  // namespace specdec
