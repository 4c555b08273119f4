#include "ops.h"

#include "../kernels/gather_accepted.xpu"

namespace specdec::xpu {

void gather_accepted(const GatherAcceptedArgs& a, const LaunchOptions& options) {
  launch_items(options, a.slots, 16, gather_accepted_kernel, a.accept_tokens, a.accept_num, a.cu_seqlens_q_output,
               a.seq_lens_encoder, a.seq_lens_this_time, a.token_ids, a.rows, a.cu_batch_token_offset, a.slots,
               a.draft_width, a.row_capacity, a.accept_capacity);
}

}  // namespace specdec::xpu
