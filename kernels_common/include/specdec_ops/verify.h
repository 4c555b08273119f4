// Arguments of verify_draft_tokens.
#pragma once

#include <cstdint>

#include "specdec/verify.h"

namespace specdec {

struct VerifyArgs {
  const int64_t* draft_tokens;                          // [M, draft_width]
  const int64_t* target_tokens;                         // [rows], by token
  const int64_t* candidate_ids;                         // [rows, width], by candidates, as the two that follow
  const float* candidate_scores;
  const int32_t* candidate_lens;                        // [rows]
  const float* top_p;                                   // [M]
  const float *target_probs, *draft_probs;              // [rows, width], [M, draft_width - 1, width] or null
  const int64_t *seed, *prompt_lens, *step_idx, *max_dec_len;
  const bool *stop_flags, *is_block_step;
  const int32_t *seq_lens_encoder, *seq_lens_decoder;
  const int32_t *seq_lens_this_time, *cu_seqlens_q_output;  // [slots_in_use], [slots_in_use + 1]
  const int32_t* reasoning_status;
  const int64_t* end_tokens;                            // [end_count]
  int64_t* accept_tokens;                               // [M, draft_width]
  int32_t* accept_num;
  int64_t slots, slots_in_use, draft_width, rows, width, end_count, verify_window;
  Strategy strategy;
  AcceptPolicy policy;
  bool end_at_limit;
};

}  // namespace specdec
