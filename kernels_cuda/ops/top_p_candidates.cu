// top_p_candidates: a cluster a row.
#include "ops.h"
#include "row_launch.cuh"
#include "row_list.cuh"
#include "specdec_ops/top_p_candidates.h"

namespace specdec::cuda {

template <bool kResident>
__global__ void __launch_bounds__(kRowThreads, kListBlocks) top_p_candidates_kernel(TopPCandidatesArgs a) {
  using Part = RowPart<Probability, kResident>;
  __shared__ RowShared s;
  wait_for_previous();
  const int64_t r = Cluster::index(), b = a.batch_id_per_token_output[r];
  const bool leads = Cluster::rank() == 0;
  float* scores = a.candidate_scores + r * a.C;
  int64_t* ids = a.candidate_ids + r * a.C;
  if (b < 0 || b >= a.M) {
    if (!leads) return;
    for (int64_t i = threadIdx.x; i < a.C; i += kRowThreads) {
      scores[i] = 0.0f;
      ids[i] = -1;
    }
    if (threadIdx.x == 0) a.candidate_lens[r] = 0;
    return;
  }
  clear_shared(s);
  Cluster::arrive();
  const uint64_t wanted = fraction_mass(a.top_p[b]);
  Part part(a.probs + r * a.V, static_cast<int>(a.V));
  NoChunks no_chunks;
  load_tops<Probability>(part, s, no_chunks);
  uint64_t running = 0;
  int64_t reached = 0;
  list_row<Probability>(part, s, a.C, [&](int64_t at, int n) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kRowThreads) {
      scores[at + i] = s.top.sorted_value[i];
      ids[at + i] = s.top.sorted_id[i];
    }
    if (threadIdx.x != 0) return;
    for (int i = 0; i < n && reached == 0; ++i) {
      running += prob_mass(s.top.sorted_value[i]);
      if (running >= wanted) reached = at + i + 1;
    }
    if (at + n == a.C) a.candidate_lens[r] = static_cast<int32_t>(reached > 0 ? reached : a.C);
  });
}

void top_p_candidates(const TopPCandidatesArgs& a, cudaStream_t stream) {
  launch_rows<Probability>("top_p_candidates", stream, a.R_cap, a.V, false,
                           [](auto resident) { return top_p_candidates_kernel<decltype(resident)::value>; }, a);
}
SPECDEC_OP(top_p_candidates, kLimits)

}  // namespace specdec::cuda
