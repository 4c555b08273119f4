// token_logprobs: a cluster an accepted token.
#pragma once

#include "row_list.cuh"
#include "row_masses.cuh"
#include "specdec_ops/row_tensors.h"

namespace specdec::cuda {

// Fills an entry that has nothing to list; by one block.
__device__ __forceinline__ void fill_entry(const LogprobTensors& t, int64_t a, int64_t first_id, float logprob) {
  for (int64_t i = threadIdx.x; i < t.width; i += kRowThreads) {
    t.ids[a * t.width + i] = i == 0 ? first_id : -1;
    t.logprobs[a * t.width + i] = logprob;
  }
  if (threadIdx.x == 0) t.ranks[a] = -1;
}

template <class L, bool kResident>
__global__ void __launch_bounds__(kRowThreads, 2)
    token_logprobs_kernel(LogprobTensors t, const typename L::Bits* logits) {
  using Part = RowPart<L, kResident>;
  __shared__ RowBoard s;
  wait_for_previous();
  const int64_t a = Cluster::index(), accepted = clamp64(*t.accepted, 0, t.entries);
  const bool leads = Cluster::rank() == 0;
  const int64_t r = t.rows[a], token = t.token_ids[a];
  if (a >= accepted || r < 0 || r >= t.row_count || token < 0 || token >= t.vocabulary) {
    if (leads) fill_entry(t, a, -1, 0.0f);
    return;
  }
  clear_board(s);
  Cluster::arrive();
  const typename L::Bits* row = logits + r * t.vocabulary;
  const float chosen = L::widen(row[token]);
  Part part(row, static_cast<int>(t.vocabulary));
  int not_below = 0;
  const auto count = [&](const Elements<L>& elements) {
#pragma unroll
    for (float x : elements.x) not_below += x >= chosen ? 1 : 0;
  };
  const int32_t top = t.width == 1 ? load_largest<L>(part, s, count) : load_tops<L>(part, s, count);
  if (top == kKeyNan || top == -kKeyInf) {
    if (leads) fill_entry(t, a, token, -FLT_MAX);
    return;
  }
  const float row_max = key_value(top);
  publish(s.published[1], static_cast<uint64_t>(warp_sum(not_below)));
  publish(s.published[3], isfinite(row_max) ? all_masses(part, UnitSoftmax{row_max})
                                            : all_masses(part, AnySoftmax{{row_max, 1.0f}}));
  RowLogprobs of_row = {row_max, 0.0f};
  const auto begin_entry = [&] {
    of_row.ln_total = ln_ratio(gather(s.published[3]).total);
    const int64_t rank = static_cast<int64_t>(gather(s.published[1]).total);
    if (threadIdx.x != 0) return;
    t.ids[a * t.width] = t.token_ids[a];  // from memory: less is kept in registers through the passes
    t.logprobs[a * t.width] = of_row.of(chosen);
    t.ranks[a] = chosen == -INFINITY ? t.vocabulary : rank;  // what fills the edges of the row is -inf too
  };
  if (t.width == 1) {
    Cluster::sync();
    if (leads && warp_id() == 0) begin_entry();
    return;
  }
  list_row<L>(part, s, t.width - 1, [&](int64_t at, int n) {
    if (warp_id() >= (kSorted + 31) / 32) return;
    if (at == 0) begin_entry();
    const int i = static_cast<int>(threadIdx.x);
    if (i >= n) return;
    t.ids[a * t.width + 1 + at + i] = s.sorted_id[i];
    t.logprobs[a * t.width + 1 + at + i] = of_row.of(s.sorted_value[i]);
  });
}

}  // namespace specdec::cuda
