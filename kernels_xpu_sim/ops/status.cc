#include "ops.h"

#include "../kernels/update_model_status.xpu"

namespace specdec::xpu {

void update_model_status(const StatusArgs& a, const LaunchOptions& options) {
  launch(options, 1, parts_of(a.slots, 16), update_model_status_kernel, a.seq_lens_encoder, a.seq_lens_decoder,
         a.seq_lens_this_time, a.stop_flags, a.step_idx, a.token_ids_all, a.draft_tokens, a.accept_tokens, a.accept_num,
         a.has_running, a.is_block_step, a.prompt_lens, a.end_tokens, a.max_dec_len, a.slots, a.draft_width,
         a.row_width, a.end_count);
}

}  // namespace specdec::xpu
