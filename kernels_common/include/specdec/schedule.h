// The scheduler's decision for a slot, stop sequences, and accepted tokens in the history (contract, section 8).
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec/integers.h"

namespace specdec {

// Inout: the slot's entries of the tensors of the same names.
struct ScheduledSlot {
  int64_t step_idx;
  int32_t enc, dec, slt;
  Flag stopped, paused;
};

// Columns [start, start + count) of the history, for columns [0, count) of input_ids; none unless the slot prefills.
struct PrefillChunk {
  int64_t start, count;
};

SPECDEC_HD PrefillChunk prefill_chunk(SlotAction action, int32_t chunk_start, int32_t chunk_len, int64_t input_width,
                                      int64_t row_width) {
  if (action != SlotAction::kPrefill) return {0, 0};
  const int64_t start = clamp64(chunk_start, 0, row_width);
  return {start, clamp64(chunk_len, 0, min64(input_width, row_width - start))};
}

SPECDEC_HD void schedule_slot(ScheduledSlot* slot, SlotAction action, const PrefillChunk& chunk,
                              int64_t chunk_step_idx) {
  switch (action) {
    case SlotAction::kPrefill:
      slot->enc = slot->slt = static_cast<int32_t>(chunk.count);
      slot->dec = static_cast<int32_t>(chunk.start);
      slot->step_idx = chunk_step_idx;
      slot->stopped = slot->paused = false;
      break;
    case SlotAction::kWait: slot->enc = slot->slt = 0; break;
    case SlotAction::kStop:
      slot->enc = slot->dec = slot->slt = 0;
      slot->stopped = true;
      break;
    default:  // kKeep, and what names no action
      break;
  }
}

// A slot's emitted tokens after `step` generated ones. Stop sequences count for those in [first, count), where
// min_dec_len is reached. `end_after`: an end token replaces the one after the sequence.
struct EmittedTokens {
  int64_t prompt_end, step, first, count;
  bool end_after;

  SPECDEC_HD EmittedTokens(int64_t prompt_len, int64_t step_idx, int64_t min_dec_len, int32_t accept_num,
                           bool end_after_stop, int64_t row_width, int64_t draft_width)
      : end_after(end_after_stop) {
    const History history = history_bounds(row_width, prompt_len, step_idx);
    prompt_end = history.prompt_end;
    step = history.end - history.prompt_end;
    count = clamp64(accept_num, 0, draft_width);
    first = clamp64(saturating_sub(min_dec_len, generated(0)), 0, count);
  }

  // Generated tokens of which the last ends a sequence if the emitted one at i is the request's last: with it, or
  // before it.
  SPECDEC_HD int64_t generated(int64_t i) const { return step + i + (end_after ? 0 : 1); }
};

// Whether [0, length) of a text ends with [0, size) of a sequence. Starts at the last token, where most differ; devices
// compare `kTogether` at once.
template <int kTogether = 1, typename Text, typename Sequence>
SPECDEC_HD bool ends_with(Text& text, int64_t length, Sequence& sequence, int64_t size) {
  bool same = size > 0 && size <= length;
  for (int64_t k = 1; same && k <= size; k += kTogether) {
    for (int j = 0; j < kTogether; ++j) {
      const int64_t back = min64(k + j, size);
      same &= text[length - back] == sequence[size - back];
    }
  }
  return same;
}

// The first emitted token that ends a stop sequence, or `count`. `text[g]` are the generated tokens, emitted
// ones included; `sequences.size(q)` and `sequences.at(q)` a sequence.
template <typename Text, typename Sequences>
SPECDEC_HD int64_t first_stop(const EmittedTokens& emitted, Text& text, Sequences& sequences, int64_t sequence_count) {
  for (int64_t i = emitted.first; i < emitted.count; ++i) {
    for (int64_t q = 0; q < sequence_count; ++q) {
      const int64_t size = sequences.size(q);
      auto sequence = sequences.at(q);
      if (ends_with(text, emitted.generated(i), sequence, size)) return i;
    }
  }
  return emitted.count;
}

// Accepted tokens [first, end) of a slot go to columns start + first and on of its history row.
struct WrittenTokens {
  int64_t start, first, end;
};

// For a slot that runs. `last_index`: step_idx is the place of the last token, not the count with it.
SPECDEC_HD WrittenTokens written_tokens(int64_t prompt_len, int64_t step_idx, int32_t accept_num, bool last_index,
                                        int64_t draft_width, int64_t row_width) {
  if (step_idx < 0) return {0, 0, 0};
  const int64_t count = clamp64(accept_num, 0, draft_width), prompt_end = clamp64(prompt_len, 0, row_width);
  // From there on every token is after the row.
  const int64_t step = min64(step_idx, row_width + draft_width);
  const int64_t start = prompt_end + step + (last_index ? 1 : 0) - count;
  return {start, clamp64(prompt_end - start, 0, count), clamp64(row_width - start, 0, count)};
}

}  // namespace specdec
