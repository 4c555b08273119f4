// top_p_candidates: a cluster a row.
#pragma once

#include "row_list.cuh"
#include "specdec_ops/row_tensors.h"

namespace specdec::cuda {

template <bool kResident>
__global__ void __launch_bounds__(kRowThreads, 2) top_p_candidates_kernel(CandidateTensors t) {
  using Part = RowPart<Probability, kResident>;
  __shared__ RowBoard s;
  wait_for_previous();
  const int64_t r = Cluster::index(), b = t.slot_of_row[r];
  const bool leads = Cluster::rank() == 0;
  float* scores = t.scores + r * t.candidates;
  int64_t* ids = t.ids + r * t.candidates;
  if (b < 0 || b >= t.slots) {
    if (!leads) return;
    for (int64_t i = threadIdx.x; i < t.candidates; i += kRowThreads) {
      scores[i] = 0.0f;
      ids[i] = -1;
    }
    if (threadIdx.x == 0) t.lens[r] = 0;
    return;
  }
  clear_board(s);
  Cluster::arrive();
  const uint64_t wanted = fraction_mass(t.top_p[b]);
  Part part(t.probs + r * t.vocabulary, static_cast<int>(t.vocabulary));
  load_tops<Probability>(part, s);
  uint64_t running = 0;
  int64_t reached = 0;
  list_row<Probability>(part, s, t.candidates, [&](int64_t at, int n) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kRowThreads) {
      scores[at + i] = s.sorted_value[i];
      ids[at + i] = s.sorted_id[i];
    }
    if (threadIdx.x != 0) return;
    for (int i = 0; i < n && reached == 0; ++i) {
      running += prob_mass(s.sorted_value[i]);
      if (running >= wanted) reached = at + i + 1;
    }
    if (at + n == t.candidates) t.lens[r] = static_cast<int32_t>(reached > 0 ? reached : t.candidates);
  });
}

}  // namespace specdec::cuda
