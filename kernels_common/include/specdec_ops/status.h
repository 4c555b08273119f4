// Arguments of update_model_status.
#pragma once

#include <cstdint>

namespace specdec {

struct StatusArgs {
  int32_t *seq_lens_encoder, *seq_lens_decoder;  // [M]
  int32_t* seq_lens_this_time;                   // [slots]
  bool* stop_flags;
  int64_t *step_idx, *token_ids_all, *draft_tokens;  // [M], [M, row_width], [M, draft_width]
  const int64_t* accept_tokens;                      // [M, draft_width]
  int32_t* accept_num;
  bool* has_running;  // [1]
  const bool* is_block_step;
  const int64_t *prompt_lens, *end_tokens, *max_dec_len;  // [M], [end_count], [M]
  int64_t slots, draft_width, row_width, end_count;
};

}  // namespace specdec
