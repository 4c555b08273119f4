// Arguments of gather_accepted.
#pragma once

#include <cstdint>

namespace specdec {

struct GatherAcceptedArgs {
  const int64_t* accept_tokens;                                                   // [M, draft_width]
  const int32_t *accept_num, *cu_seqlens_q_output, *seq_lens_encoder, *seq_lens_this_time;
  int64_t* token_ids;                                                             // [accept_capacity]
  int32_t *rows, *cu_batch_token_offset;                                          // [accept_capacity], [slots + 1]
  int64_t slots, draft_width, row_capacity, accept_capacity;
};

}  // namespace specdec
