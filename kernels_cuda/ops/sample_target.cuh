// sample_target: a cluster a row.
#pragma once

#include "sample_rows.cuh"

namespace specdec::cuda {

template <class L, bool kResident>
__global__ void __launch_bounds__(kRowThreads, 2)
    sample_target_kernel(SamplingTensors t, const typename L::Bits* logits, int64_t* target_tokens) {
  __shared__ RowBoard s;
  wait_for_previous();
  const int64_t position = t.position[Cluster::index()];
  const RowLook look = read_params(t, Cluster::index(), position, s);  // before it is known whether they will be needed
  const bool leads = Cluster::rank() == 0;
  if (position < 0) {
    if (leads && threadIdx.x == 0) target_tokens[Cluster::index()] = -1;
    return;
  }
  clear_board(s);
  Cluster::arrive();
  RowPart<L, kResident> part(logits + Cluster::index() * t.vocabulary, static_cast<int>(t.vocabulary));
  const int32_t top = load_row<L>(part, s, look);
  if (top == kKeyNan || top == -kKeyInf) {
    if (leads && threadIdx.x == 0) target_tokens[Cluster::index()] = -1;
    return;
  }
  if (!(s.params.temperature > 0.0f)) {
    find_first(part, s, top);
    Cluster::sync();
    if (leads && threadIdx.x == 0) target_tokens[Cluster::index()] = s.first_id;
    return;
  }
  set_softmax(s, top);
  if (is_short_list(s.params, part.size())) {
    const int32_t pivot = pivot_key(s, s.params.top_k);
    collect_top(part, s, pivot);
    Cluster::sync();
    if (settle_top(part, s, s.params.top_k, pivot)) {
      if (leads) {
        sort_top(s, s.params.top_k);
        keep_sorted(s);
        const int id = draw_sorted(s);
        if (id >= 0) target_tokens[Cluster::index()] = id;
      }
      Cluster::sync();  // the leader stays until all have read its counts
      return;
    }
  }
  const RowKept kept = keep_row<L>(part, s);
  publish(s.published[3], kept.own);
  Cluster::sync();
  const int id = draw_token(part, s, kept_by(s, kept.cut), gather(s.published[3]), kept.own, s.random,
                            kept.listed);
  if (id >= 0) target_tokens[Cluster::index()] = id;
}

}  // namespace specdec::cuda
