// Update of one slot after a step (contract, section 5).
#pragma once

#include "specdec/integers.h"

namespace specdec {

// Inout: the slot's entries of the tensors of the same names.
struct SlotStatus {
  int64_t step_idx;
  int32_t enc, dec, slt, accept_num;
  bool stopped;
};

// Under `end_at_limit`: whether the slot's accepted token at i is its last, because it is an end token or because it
// reaches the limit, where it becomes an end token.
template <typename EndTokens>
SPECDEC_HD bool ends_slot(int64_t step_idx, int64_t i, int64_t max_dec_len, EndTokens& end_tokens, int64_t end_count,
                          int64_t* token) {
  for (int64_t e = 0; e < end_count; ++e) {
    if (end_tokens[e] == *token) return true;
  }
  if (wrap_add(step_idx, i + 1) < max_dec_len) return false;
  if (end_count > 0) *token = end_tokens[0];
  return true;
}

// Copies for the caller: accepted tokens [0, fits) to column `start` of the history; the last accepted token (if count
// > 0) to the base token.
struct StatusMoves {
  int64_t start, fits, count;
};

// `accepted[i]` are the slot's accept_tokens, `end_tokens[e]` the end tokens.
template <typename Accepted, typename EndTokens>
SPECDEC_HD StatusMoves advance_slot(SlotStatus* slot, bool paused, int64_t prompt_len, int64_t max_dec_len,
                                    int64_t draft_width, int64_t row_width, Accepted& accepted, EndTokens& end_tokens,
                                    int64_t end_count) {
  if (slot->stopped || paused) {
    slot->stopped = true;
    slot->enc = slot->dec = slot->slt = slot->accept_num = 0;
    return {0, 0, 0};
  }
  const int64_t count = clamp64(slot->accept_num, 0, draft_width);
  const int64_t start = history_bounds(row_width, prompt_len, slot->step_idx).end;
  slot->step_idx = wrap_add(slot->step_idx, count);
  if (slot->enc > 0) {
    slot->dec = wrap_add32(slot->dec, slot->enc);
    slot->enc = 0;
  } else if (slot->dec > 0) {
    slot->dec = wrap_add32(slot->dec, static_cast<int32_t>(count));
  }
  bool ended = false;
  if (count > 0) {
    const int64_t last = accepted[count - 1];
    for (int64_t e = 0; e < end_count && !ended; ++e) ended = end_tokens[e] == last;
  }
  slot->stopped = ended || slot->step_idx >= max_dec_len;
  return {start, min64(count, row_width - start), count};
}

}  // namespace specdec
