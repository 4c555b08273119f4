// What depends on all slots: prefix sums, before a core's slots and in all, and whether any slot runs. There is no
// barrier across clusters, so every cluster sums all slots itself.
#pragma once

#include "specdec/flag.h"
#include "tiles.h"

namespace specdec {

template <int N>
struct Sums {
  int64_t of[N];

  __device__ void clear() {
    for (int i = 0; i < N; ++i) of[i] = 0;
  }
  __device__ void add(const Sums& other) {
    for (int i = 0; i < N; ++i) of[i] += other.of[i];
  }
};

// This core's slots [low, high), the sums over the slots before them, and over all slots.
template <int N>
struct SlotPart {
  int64_t low, high;
  Sums<N> before, total;
};

template <int N, typename Source>
static __device__ void add_slots(Source& source, int64_t low, int64_t high, Sums<N>* sums) {
  for (int64_t b = low; b < high; ++b) sums->add(source.share(b));
}

// `source.share(b)` is what slot b adds. All cores of the cluster call this once in a kernel.
template <int N, typename Source>
static __device__ void slot_part(Source& source, int64_t slots, SlotPart<N>* part) {
  __shared__ Sums<N> before[kMaxClusterCores];
  __shared__ Sums<N> own[kMaxClusterCores];
  __shared__ Sums<N> after[kMaxClusterCores];
  const int core = core_id(), cores = core_num();
  int64_t cluster_low, cluster_high, low, high;
  partition(cluster_id(), cluster_num(), slots, 1, &cluster_low, &cluster_high);
  partition(core, cores, cluster_high - cluster_low, 1, &part->low, &part->high);
  part->low += cluster_low;
  part->high += cluster_low;

  Sums<N> sums;
  sums.clear();
  partition(core, cores, cluster_low, 1, &low, &high);
  add_slots(source, low, high, &sums);
  before[core] = sums;
  sums.clear();
  add_slots(source, part->low, part->high, &sums);
  own[core] = sums;
  sums.clear();
  partition(core, cores, slots - cluster_high, 1, &low, &high);
  add_slots(source, cluster_high + low, cluster_high + high, &sums);
  after[core] = sums;
  mfence_sm();
  sync_cluster();

  part->before.clear();
  part->total.clear();
  for (int k = 0; k < cores; ++k) {
    part->before.add(before[k]);
    if (k < core) part->before.add(own[k]);
    part->total.add(before[k]);
    part->total.add(own[k]);
    part->total.add(after[k]);
  }
}

// Whether any core of the cluster says yes. All cores call this; the first one writes it.
static inline __device__ void set_running(bool mine, Flag* has_running) {
  __shared__ bool running[kMaxClusterCores];
  running[core_id()] = mine;
  mfence_sm();
  sync_cluster();
  if (core_id() != 0) return;
  for (int k = 1; k < core_num(); ++k) mine = mine || running[k];
  gm_put(has_running, Flag{mine});
}

}  // namespace specdec
