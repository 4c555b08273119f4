// Passes over a row that sum masses.
#pragma once

#include "row_board.cuh"
#include "specdec/row_sample.h"

namespace specdec::cuda {

// Masses of a row without infinities in its maximum or in 1/temperature: no t is NaN, which saves operations. The same
// bits as Softmax.
struct OrdinarySoftmax {
  Softmax softmax;

  __device__ __forceinline__ float t(float logit) const {
    return mul_rn(mul_rn(sub_rn(logit, softmax.row_max), softmax.inv_temperature), kLog2E);
  }
  static __device__ __forceinline__ uint64_t mass(float t) { return exp2_mass_below(t); }
};

// The same at temperature 1.
struct UnitSoftmax {
  float row_max;

  __device__ __forceinline__ float t(float logit) const { return mul_rn(sub_rn(logit, row_max), kLog2E); }
  static __device__ __forceinline__ uint64_t mass(float t) { return exp2_mass_below(t); }
};

// For any row.
struct AnySoftmax {
  Softmax softmax;

  __device__ __forceinline__ float t(float logit) const { return softmax.t(logit); }
  static __device__ __forceinline__ uint64_t mass(float t) { return exp2_mass(t); }
};

__device__ __forceinline__ bool is_ordinary(const Softmax& softmax) {
  return isfinite(softmax.row_max) && isfinite(softmax.inv_temperature);
}

// body(masses) with the quickest that give a row's bits.
template <class Body>
__device__ __forceinline__ auto with_masses(const Softmax& softmax, Body body) {
  return is_ordinary(softmax) ? body(OrdinarySoftmax{softmax}) : body(AnySoftmax{softmax});
}

// Sum of all masses of this warp, in all lanes. Vectors beyond the row's ends are -inf, which has no mass.
template <class Part, class Masses>
__device__ __forceinline__ uint64_t all_masses(const Part& part, Masses masses) {
  uint64_t total = 0;
  part.sweep([&](int, const auto& elements, bool) {
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) total += Masses::mass(masses.t(elements.x[j]));
  });
  return warp_sum(total);
}

// The kept mass of an element.
template <class Masses>
__device__ __forceinline__ uint64_t kept_mass(const KeptMasses& kept, Masses masses, float x, int id) {
  if (!(x >= key_value(kept.cut.key)) && kept.cut.key != keep_all().key) return 0;
  return kept.of(order_key(x), id, Masses::mass(masses.t(x)));
}

template <class Part, class Masses>
__device__ __forceinline__ uint64_t kept_masses(const Part& part, const KeptMasses& kept, Masses masses) {
  uint64_t total = 0;
  part.sweep([&](int v, const auto& elements, bool) {
    const int id = part.id(v);
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) total += kept_mass(kept, masses, elements.x[j], id + j);
  });
  return warp_sum(total);
}

// Sum of this warp's kept masses, in all lanes.
template <class Part>
__device__ __forceinline__ uint64_t warp_masses(const Part& part, const KeptMasses& kept) {
  return with_masses(kept.softmax, [&](auto masses) {
    return kept.everything() ? all_masses(part, masses) : kept_masses(part, kept, masses);
  });
}

// Draws the row's token from the warps' sums `own` of kept masses, and their sums before and in all; -1 in all threads
// but one. All blocks of the row call it.
template <class Part>
__device__ __forceinline__ int draw_token(const Part& part, RowBoard& s, KeptMasses kept, Published sums,
                                          uint64_t own, uint64_t random) {
  const int tid = static_cast<int>(threadIdx.x), lane = static_cast<int>(lane_id());
  const uint64_t point = draw_point(random, sums.total);
  if (lane == 0 && point >= sums.before && point - sums.before < own) {
    s.drawn_warp = static_cast<int>(warp_id());
    s.drawn_point = point - sums.before;
    s.drawn_cut = kept.cut;
  }
  __syncthreads();
  const int warp = s.drawn_warp;
  if (warp < 0) return -1;
  kept.cut = s.drawn_cut;  // of equal elements a warp knows its own
  // The block shares that warp's vectors, a stretch of them each; the thread whose stretch it is gives one to each
  // lane.
  const AnySoftmax masses{kept.softmax};
  const auto vector_mass = [&](int v) {
    const auto elements = part[v];
    uint64_t sum = 0;
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) sum += kept_mass(kept, masses, elements.x[j], part.id(v) + j);
    return sum;
  };
  const int first = part.begin(warp), last = part.end(warp), each = (last - first + kRowThreads - 1) / kRowThreads;
  uint64_t sum = 0;
  for (int v = first + tid * each; v < min(first + (tid + 1) * each, last); ++v) sum += vector_mass(v);
  uint64_t total, before = warp_inclusive(sum);
  before += block_warps_below(__shfl_sync(kAllLanes, before, 31), s.warp_part, &total) - sum;
  const uint64_t rest = s.drawn_point;
  const uint32_t winners = __ballot_sync(kAllLanes, before <= rest && rest - before < sum);
  if (winners == 0) return -1;
  const int winner = __ffs(static_cast<int>(winners)) - 1;
  uint64_t missing = rest - __shfl_sync(kAllLanes, before, winner);
  const int from = first + (tid - lane + winner) * each;
  for (int v = from; v < min(from + each, last); v += 32) {
    sum = v + lane < min(from + each, last) ? vector_mass(v + lane) : 0;
    uint64_t upto = warp_inclusive(sum);
    const uint32_t beyond = __ballot_sync(kAllLanes, upto > missing);
    if (beyond == 0) {
      missing -= __shfl_sync(kAllLanes, upto, 31);
      continue;
    }
    if (lane != __ffs(static_cast<int>(beyond)) - 1) return -1;
    const auto elements = part[v + lane];
    upto -= sum;
    for (int j = 0; j < Part::kLength; ++j) {
      upto += kept_mass(kept, masses, elements.x[j], part.id(v + lane) + j);
      if (upto > missing) return part.id(v + lane) + j;
    }
  }
  return -1;
}

}  // namespace specdec::cuda
