#include "top_p_candidates.cuh"

#include "ops.h"
#include "row_launch.cuh"

namespace specdec::cuda {
namespace {

struct Kernels {
  static constexpr auto resident = top_p_candidates_kernel<true>, streaming = top_p_candidates_kernel<false>;
};

}  // namespace

void top_p_candidates(const TopPCandidatesArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return;
  const CandidateTensors tensors = {a.probs,         a.top_p,          a.batch_id_per_token_output, a.candidate_scores,
                                    a.candidate_ids, a.candidate_lens, a.rows,                      a.vocabulary,
                                    a.slots,         a.candidates};
  launch_rows<Kernels>("top_p_candidates", stream, a.rows, a.vocabulary, sizeof(float), tensors);
}

}  // namespace specdec::cuda
