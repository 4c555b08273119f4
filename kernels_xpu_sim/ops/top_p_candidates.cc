#include "../kernels/top_p_candidates.xpu"

#include "logit_types.h"

namespace specdec::xpu {

void top_p_candidates(const TopPCandidatesArgs& a, const LaunchOptions& options) {
  if (a.rows == 0) return;
  const CandidateTensors tensors{a.probs,          a.top_p, a.batch_id_per_token_output, a.candidate_scores,
                                 a.candidate_ids,  a.candidate_lens, a.rows,              a.vocabulary,
                                 a.slots,          a.candidates};
  launch(options, a.rows, parts_of(a.vocabulary, kRowShare), top_p_candidates_kernel, tensors);
}

}  // namespace specdec::xpu
