#include "ops.h"

#include "../kernels/verify_draft_tokens.xpu"

namespace specdec::xpu {

void verify_draft_tokens(const VerifyArgs& a, const LaunchOptions& options) {
  VerifyTensors t;
  t.draft_tokens = a.draft_tokens;
  t.seed = a.seed;
  t.prompt_lens = a.prompt_lens;
  t.step_idx = a.step_idx;
  t.max_dec_len = a.max_dec_len;
  t.stop_flags = a.stop_flags;
  t.is_block_step = a.is_block_step;
  t.seq_lens_encoder = a.seq_lens_encoder;
  t.seq_lens_decoder = a.seq_lens_decoder;
  t.seq_lens_this_time = a.seq_lens_this_time;
  t.cu_seqlens_q_output = a.cu_seqlens_q_output;
  t.reasoning_status = a.reasoning_status;
  t.end_tokens = a.end_tokens;
  t.accept_tokens = a.accept_tokens;
  t.accept_num = a.accept_num;
  t.slots = a.slots;
  t.slots_in_use = a.slots_in_use;
  t.draft_width = a.draft_width;
  t.row_capacity = a.rows;
  t.end_count = a.end_count;
  t.policy = a.policy;
  t.end_at_limit = a.end_at_limit;
  switch (a.strategy) {
    case Strategy::kGreedy:
    case Strategy::kTargetMatch:
      launch_items(options, a.slots, 8, verify_by_tokens_kernel, t, a.target_tokens);
      break;
    case Strategy::kTopP:
      launch_items(options, a.slots, 8, verify_by_candidates_kernel, t, a.candidate_ids, a.candidate_scores,
                   a.candidate_lens, a.top_p, a.width, a.verify_window);
      break;
    case Strategy::kRejection:
      launch(options, a.slots, parts_of(a.width, 2048), verify_by_probs_kernel, t, a.target_probs, a.draft_probs,
             a.width);
  }
}

}  // namespace specdec::xpu
