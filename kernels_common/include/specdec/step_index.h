// The packed batch (contract, sections 1, 2 and 7): sizes and positions of slots.
#pragma once

#include "specdec/integers.h"

namespace specdec {

// A slot's contribution to the offsets of `prepare_inputs`.
struct StepShare {
  int64_t tokens;  // slt, clamped to the row the tokens come from
  int64_t keys;    // of cu_seqlens_k
  int64_t rows;    // output rows
};

SPECDEC_HD StepShare step_share(int32_t slt, int32_t enc, int32_t dec, int64_t input_width, int64_t draft_width) {
  const bool prefill = enc > 0;
  const int64_t tokens = clamp64(slt, 0, prefill ? input_width : draft_width);
  if (tokens == 0) return {0, 0, 0};
  return {tokens, tokens + max64(dec, 0), prefill ? 1 : tokens};
}

SPECDEC_HD int32_t saturate32(int64_t sum) { return static_cast<int32_t>(min64(sum, kInt32Max)); }

// Tokens that a slot adds to `gather_accepted`.
SPECDEC_HD int64_t accepted_share(int32_t accept_num, int32_t slt, int64_t draft_width) {
  return slt > 0 ? clamp64(accept_num, 0, draft_width) : 0;
}

// The logit row of a slot's i-th accepted token.
SPECDEC_HD int32_t accepted_row(int32_t first_row, int32_t enc, int64_t i, int64_t row_capacity) {
  return static_cast<int32_t>(clamp64(int64_t{first_row} + (enc > 0 ? 0 : i), 0, row_capacity - 1));
}

// Rows [start, stop) of the packed batch.
struct RowRange {
  int64_t start, stop;

  SPECDEC_HD int64_t size() const { return stop - start; }
};

// A slot's tokens in slot order, clamped to the array. No sum of two int32 is larger than a uint32.
SPECDEC_HD RowRange slot_rows(int32_t cu_seqlens_q, int32_t slt, int64_t capacity) {
  const auto most = static_cast<uint32_t>(min64(capacity, 0xFFFFFFFF));
  const uint32_t first = cu_seqlens_q > 0 ? static_cast<uint32_t>(cu_seqlens_q) : 0;
  const uint32_t start = first < most ? first : most;
  const uint32_t sum = start + (slt > 0 ? static_cast<uint32_t>(slt) : 0);
  return {start, sum < most ? sum : most};
}

// PREFILL_FIRST takes two passes over the slots, those with enc > 0 first; SLOT takes one.
SPECDEC_HD int placement_passes(bool prefill_first) { return prefill_first ? 2 : 1; }
SPECDEC_HD bool placed_in_pass(bool prefill_first, int pass, int32_t enc) {
  return !prefill_first || (enc > 0) == (pass == 0);
}

// The slot-order row that predicts output row `i` of a slot, for a slot with rows; only the last one counts in the
// plain path (`speculative` false) and for a prefill chunk.
SPECDEC_HD int64_t predicting_row(RowRange rows, bool speculative, int32_t enc, int64_t i) {
  return !speculative || enc > 0 ? rows.stop - 1 : rows.start + clamp64(i, 0, rows.size() - 1);
}

}  // namespace specdec
