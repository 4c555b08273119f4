// The first elements of a row, in order.
#pragma once

#include "row_search.cuh"

namespace specdec::cuda {

// Blocks on an SM, of kernels that list; for two the compiler would spill registers on the newest devices.
#if __CUDA_ARCH__ >= 1200
constexpr int kListBlocks = 1;
#else
constexpr int kListBlocks = 2;
#endif

// Lists the first `want` (at most the row's size) elements in stretches: in the leader, all threads call emit(at, n)
// with elements at .. at + n - 1 in s.top.sorted_value and s.top.sorted_id. There is a Cluster::sync() before the first
// call, and no block leaves before the others have read what they need of it.
template <class L, class Part, class Emit>
__device__ __forceinline__ void list_row(const Part& part, RowShared& s, int64_t want, Emit emit) {
  const bool leads = Cluster::rank() == 0;
  if (want <= kSorted) {
    const int need = static_cast<int>(want);
    const int32_t pivot = pivot_key(s, need);
    collect_top(part, s, pivot);
    Cluster::sync();
    if (settle_top(part, s, need, pivot)) {
      if (leads) {
        sort_top(s, need);
        emit(int64_t{0}, need);
      }
      Cluster::sync();
      return;
    }
  }
  const KeyRange all = {-kKeyInf, kKeyInf};
  Threshold before = keep_none();
  for (int64_t at = 0; at < want; at += kSorted) {
    const int n = static_cast<int>(min64(want - at, kSorted));
    begin_search(s, {Goal::kCount, static_cast<uint64_t>(at + n), all, all.grid(), {0, 0}, {kMany, 0}, true});
    const Threshold threshold =
        narrow<L>(part, s, false, [&](auto f) SPECDEC_INLINED { each_element(part, ~0u, f); }, NoMass{}).threshold;
    Cluster::sync();  // all have read the search's list
    each_element(part, ~0u, [&](float x, int id) {
      const int32_t key = order_key(x);
      if (threshold.keeps(key, id) && !before.keeps(key, id)) Cluster::of(&s, 0)->above.append(x, id);
    });
    before = threshold;
    Cluster::sync();
    if (leads) {
      sort_top(s, n);
      emit(at, n);
      __syncthreads();
      if (threadIdx.x == 0) s.above.count = 0;
    }
  }
  Cluster::sync();
}

}  // namespace specdec::cuda
