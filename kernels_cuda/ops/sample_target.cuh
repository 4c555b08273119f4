// sample_target: a cluster for each of the rows, or for several in turn.
#pragma once

#include "sample_rows.cuh"

namespace specdec::cuda {

template <class L, bool kResident>
__global__ void __launch_bounds__(kRowThreads, 2)
    sample_target_kernel(SamplingTensors t, const typename L::Bits* logits, int64_t* target_tokens) {
  uint4* const dynamic = ptx::dynamic_shared<uint4>();
  __shared__ RowBoard s;
  wait_for_previous();
  RowPart<L, kResident> part(static_cast<int>(t.vocabulary), dynamic);
  // A row that is sampled; else null.
  const auto row_of = [&](int64_t r) {
    return r >= 0 && t.position[r] >= 0 ? logits + r * t.vocabulary : nullptr;
  };
  each_row(t.rows, [&](int64_t r, int64_t next) {
    const bool leads = Cluster::rank() == 0;
    const typename L::Bits* row = row_of(r);
    if (row == nullptr) {
      if (leads && threadIdx.x == 0) target_tokens[r] = -1;
      return;
    }
    part.begin(row, row_of(next));
    clear_board(s);
    Cluster::arrive();
    read_params(t, r, t.position[r], s);
    const bool greedy = !(t.temperature[r] > 0.0f);
    const int32_t top = load_row<L>(part, s, greedy);
    if (top == kKeyNan || top == -kKeyInf) {
      if (leads && threadIdx.x == 0) target_tokens[r] = -1;
      return;
    }
    if (greedy) {
      find_first(part, s, top);
      Cluster::sync();
      if (leads && threadIdx.x == 0) target_tokens[r] = s.first_id;
      return;
    }
    set_softmax(s, top);
    if (is_short_list(s.params, part.size())) {
      const int32_t pivot = pivot_key(s, s.params.top_k);
      collect_top(part, s, pivot);
      Cluster::sync();
      if (settle_top(part, s, s.params.top_k, pivot)) {
        part.give();
        Cluster::arrive();  // all have read the leader's counts
        if (leads) {
          sort_top(s, s.params.top_k);
          keep_sorted(s);
          const int id = draw_sorted(s);
          if (id >= 0) target_tokens[r] = id;
        }
        Cluster::wait();
        return;
      }
    }
    const RowKept kept = keep_row<L>(part, s, true);
    publish(s.published[3], kept.own);
    Cluster::sync();
    const int id = draw_token(part, s, kept_by(s, kept.cut), gather(s.published[3]), kept.own, s.random);
    if (id >= 0) target_tokens[r] = id;
  });
}

}  // namespace specdec::cuda
