#include "../kernels/apply_penalties.xpu"

#include "logit_types.h"

namespace specdec::xpu {

void apply_penalties(const ApplyPenaltiesArgs& a, const LaunchOptions& options) {
  const int64_t rows = a.size.rows;
  if (rows == 0 || a.slots_in_use == 0) return;
  const PenaltyTensors tensors{a.token_ids_all,
                               a.prompt_lens,
                               a.step_idx,
                               a.draft_tokens,
                               a.cu_seqlens_q_output,
                               a.batch_id_per_token_output,
                               a.repetition,
                               a.frequency,
                               a.presence,
                               a.bad_tokens,
                               a.end_tokens,
                               a.min_dec_len,
                               rows,
                               a.size.vocabulary,
                               a.row_width,
                               a.draft_width,
                               a.slots_in_use,
                               a.bad_count,
                               a.end_count};
  constexpr int64_t kHistoryShare = 128;  // tokens that are worth a core
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch(options, rows, parts_of(a.row_width, kHistoryShare), apply_penalties_kernel<L>, tensors,
           static_cast<typename L::Bits*>(a.logits));
  });
}

}  // namespace specdec::xpu
