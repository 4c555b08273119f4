// Updates of one slot of a draft model, and the row that it continues from (contract, section 9).
#pragma once

#include "specdec/flag.h"
#include "specdec/integers.h"
#include "specdec/step_index.h"

namespace specdec {

// Inout: the draft model's entries of the tensors of the same names.
struct DraftSlot {
  int64_t step_idx;
  int32_t enc, dec, slt;
  Flag stopped;
};

// The target's entries after its step, and the request's limits.
struct BaseSlot {
  int64_t step_idx, max_dec_len;
  int32_t dec, accept_num, draft_token_num;
  Flag stopped;
};

// Accepted tokens [0, count) go to draft_tokens; or, `in_chunk`, the first one (if count > 0) to the end of input_ids.
// In a history they begin at `column`.
struct AcceptedMoves {
  int64_t count;
  bool in_chunk;
  int64_t column;
};

// `history`: there is one, and step_idx is a column of it.
SPECDEC_HD AcceptedMoves start_drafts(DraftSlot* slot, const BaseSlot& base, int64_t input_width, int64_t draft_width,
                                      int64_t min_room, bool history) {
  const int64_t count = clamp64(base.accept_num, 0, draft_width), enc = clamp64(slot->enc, 0, input_width);
  const bool room = saturating_sub(base.max_dec_len, base.step_idx) >= min_room, feeds = count > 0 || history;
  if (base.stopped || base.draft_token_num <= 0 || !room || (enc == 0 && !feeds)) {
    *slot = {0, 0, 0, 0, {true}};
    return {0, false, 0};
  }
  slot->stopped = false;
  slot->enc = static_cast<int32_t>(enc);
  if (enc > 0) {
    slot->slt = slot->enc;
    slot->step_idx = history ? wrap_sub(base.step_idx, 1) : base.step_idx;
    return {feeds ? 1 : 0, true, 0};
  }
  slot->slt = static_cast<int32_t>(count);
  slot->dec = static_cast<int32_t>(max64(base.dec - count, 0));
  slot->step_idx = history ? wrap_sub(base.step_idx, count) : base.step_idx;
  return {count, false, slot->step_idx};
}

// Whether draft number substep + 1 of a slot with `step_idx` tokens could be accepted.
SPECDEC_HD bool takes_draft(int64_t substep, int64_t wanted, int64_t step_idx, int64_t max_dec_len) {
  return substep < wanted && step_idx > 0 && saturating_sub(max_dec_len, step_idx) > 1;
}

// Destinations of a draft model's token: `fed` (if it `feeds`) goes to draft_tokens[b, 0], `draft` to the target's
// drafts, and with a history the token to `column`, unless negative.
struct DraftMoves {
  bool feeds;
  int64_t fed, draft, column;
};

// For a slot with slt > 0, whose step_idx is a column of a history.
SPECDEC_HD DraftMoves advance_drafts_in_history(DraftSlot* slot, int64_t token, int64_t max_dec_len) {
  const bool first = slot->enc > 0, room = saturating_sub(max_dec_len, slot->step_idx) > 1;
  const int32_t fed = slot->slt, enc = slot->enc;
  slot->enc = 0;
  if (slot->stopped || token < 0) {
    slot->slt = 0;
    return {true, -1, -1, -1};
  }
  slot->slt = 1;
  if (!first && !room) return {false, 0, -1, -1};
  slot->dec = wrap_add32(slot->dec, first ? enc : fed);
  slot->step_idx = wrap_add(slot->step_idx, first ? 1 : fed);
  return {true, token, room ? token : -1, first ? 1 : slot->step_idx};
}

// For a slot with slt > 0: `token` becomes draft number substep + 1, or the slot ends drafting.
SPECDEC_HD DraftMoves advance_drafts(DraftSlot* slot, int64_t token, int64_t substep, int32_t draft_token_num,
                                     int64_t max_dec_len, int64_t draft_width) {
  const int64_t wanted = min64(draft_token_num, draft_width - 1);
  slot->dec = wrap_add32(slot->dec, slot->slt);
  slot->enc = slot->slt = 0;
  if (token < 0 || slot->stopped || !takes_draft(substep, wanted, slot->step_idx, max_dec_len)) {
    return {false, 0, -1, -1};
  }
  ++slot->step_idx;
  slot->slt = takes_draft(substep + 1, wanted, slot->step_idx, max_dec_len) ? 1 : 0;
  return {true, token, token, -1};
}

// seq_lens_this_time of the target's next step. `drafts[i]`, i < count: its row of draft_tokens after column 0.
template <typename Drafts>
SPECDEC_HD int32_t drafted_tokens(int32_t slt, int32_t enc, int32_t dec, bool stopped, Drafts& drafts, int64_t count) {
  if (stopped) return 0;
  if (enc > 0) return slt;
  if (dec <= 0) return 0;
  int64_t found = 0;
  while (found < count && drafts[found] >= 0) ++found;
  return static_cast<int32_t>(1 + found);
}

// The last of rows [start, end) of a packed array of `capacity` rows; -1: there is none.
SPECDEC_HD int64_t last_row(int32_t start, int32_t end, int64_t capacity) {
  const int64_t row = int64_t{end} - 1;
  return start <= row && row >= 0 && row < capacity ? row : -1;
}

// The target's row of row r of the draft model's batch, which is slot b's; -1: there is none.
SPECDEC_HD int64_t base_row(int64_t r, int32_t start, int32_t base_start, int32_t base_end, int64_t capacity) {
  const int64_t row = base_start + (r - start);
  return base_start <= row && row < base_end && row >= 0 && row < capacity ? row : -1;
}

}  // namespace specdec
