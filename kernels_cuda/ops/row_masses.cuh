// Passes over a row that sum masses.
#pragma once

#include "row_board.cuh"
#include "specdec/row_sample.h"

namespace specdec::cuda {

// `kCount` vectors of a part from `first` on, every `step`-th, the last before `end` in place of those beyond it: all
// are loaded before any is looked at.
template <class Part, int kCount>
struct VectorBatch {
  struct {
    float x[Part::kLength];
  } of[kCount];

  __device__ __forceinline__ VectorBatch(const Part& part, int first, int step, int end) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto elements = part[min(first + k * step, end - 1)];
#pragma unroll
      for (int j = 0; j < Part::kLength; ++j) of[k].x[j] = elements.x[j];
    }
  }
};

// Masses of a row that is ordinary (see below) and has 1/temperature > 0: no t is NaN, which saves operations. The same
// bits as Softmax.
struct OrdinarySoftmax {
  Softmax softmax;

  // Of exp2_mass_at; the larger, the less a logit weighs.
  __device__ __forceinline__ float depth(float logit) const {
    return __saturatef(mul_rn(mul_rn(sub_rn(logit, softmax.row_max), softmax.inv_temperature), kDepth * kLog2E));
  }
  __device__ __forceinline__ uint64_t operator()(float logit) const { return exp2_mass_at(depth(logit)); }
};

// The same at temperature 1.
struct UnitSoftmax {
  float row_max;

  __device__ __forceinline__ uint64_t operator()(float logit) const {
    return exp2_mass_at(__saturatef(mul_rn(sub_rn(logit, row_max), kDepth * kLog2E)));
  }
};

// For any row.
struct AnySoftmax {
  Softmax softmax;

  __device__ __forceinline__ uint64_t operator()(float logit) const { return softmax(logit); }
};

// Without infinities in its maximum or in 1/temperature.
__device__ __forceinline__ bool is_ordinary(const Softmax& softmax) {
  return isfinite(softmax.row_max) && isfinite(softmax.inv_temperature);
}

// body(masses) with the quickest that give a row's bits.
template <class Body>
__device__ __forceinline__ auto with_masses(const Softmax& softmax, Body body) {
  return is_ordinary(softmax) && softmax.inv_temperature > 0.0f ? body(OrdinarySoftmax{softmax})
                                                                : body(AnySoftmax{softmax});
}

// Sum of all masses of this warp, in all lanes. Vectors beyond the row's ends are -inf, which has no mass.
template <class Part, class Masses>
__device__ __forceinline__ uint64_t all_masses(const Part& part, Masses masses) {
  uint64_t total = 0;
  part.sweep([&](int, const auto& elements, bool) {
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) total += masses(elements.x[j]);
  });
  return warp_sum(total);
}

// The kept mass of an element.
template <class Masses>
__device__ __forceinline__ uint64_t kept_mass(const KeptMasses& kept, Masses masses, float x, int id) {
  if (!(x >= key_value(kept.cut.key)) && kept.cut.key != keep_all().key) return 0;
  return kept.of(order_key(x), id, masses(x));
}

// Kept masses a vector at a time.
template <class Masses>
struct VectorMasses {
  Masses masses;
  float low;  // the smallest value that is kept; of elements equal to it those with ids up to `last`
  int last;
  uint64_t least;

  __device__ __forceinline__ VectorMasses(const KeptMasses& kept, Masses of)
      : masses(of),
        low(kept.uncut() ? -INFINITY : key_value(kept.cut.key)),
        last(static_cast<int>(kept.cut.id)),
        least(kept.least) {}

  // The sum of a vector whose first element is `id`: of most rows most vectors are left out.
  template <class Elements>
  __device__ __forceinline__ uint64_t sum(const Elements& elements, int id) const {
    constexpr int kLength = static_cast<int>(sizeof elements.x / sizeof(float));
    bool any = false;
#pragma unroll
    for (int j = 0; j < kLength; ++j) any = any || elements.x[j] >= low;
    uint64_t total = 0;
    if (any) {
#pragma unroll
      for (int j = 0; j < kLength; ++j) {
        const float x = elements.x[j];
        const uint64_t mass = masses(x);
        if ((x > low || (x == low && id + j <= last)) && mass >= least) total += mass;
      }
    }
    return total;
  }
};

template <class Part, class Masses>
__device__ __forceinline__ uint64_t kept_masses(const Part& part, const VectorMasses<Masses>& masses) {
  uint64_t total = 0;
  part.sweep([&](int v, const auto& elements, bool) { total += masses.sum(elements, part.id(v)); });
  return warp_sum(total);
}

// Sum of this warp's kept masses, in all lanes.
template <class Part>
__device__ __forceinline__ uint64_t warp_masses(const Part& part, const KeptMasses& kept) {
  return with_masses(kept.softmax, [&](auto masses) {
    return kept.everything() ? all_masses(part, masses) : kept_masses(part, VectorMasses(kept, masses));
  });
}

// The kept mass of vectors [from, to), which are few: by the calling thread alone, with several loads under way.
template <class Part, class Masses>
__device__ __forceinline__ uint64_t stretch_mass(const Part& part, const VectorMasses<Masses>& masses, int from,
                                                 int to) {
  constexpr int kAhead = 16 / Part::kLength;
  uint64_t total = 0;
#pragma unroll 1
  for (int v = from; v < to; v += kAhead) {
    const VectorBatch<Part, kAhead> batch(part, v, 1, to);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (v + k < to) total += masses.sum(batch.of[k], part.id(v + k));
    }
  }
  return total;
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
  const int first = part.begin(warp), last = part.end(warp), each = (last - first + kRowThreads - 1) / kRowThreads;
  uint64_t sum = with_masses(kept.softmax, [&](auto masses) {
    const VectorMasses vectors(kept, masses);
    return stretch_mass(part, vectors, first + tid * each, min(first + (tid + 1) * each, last));
  });
  uint64_t total, before = warp_inclusive(sum);
  before += block_warps_below(__shfl_sync(kAllLanes, before, 31), s.warp_part, &total) - sum;
  const uint64_t rest = s.drawn_point;
  const uint32_t winners = __ballot_sync(kAllLanes, before <= rest && rest - before < sum);
  if (winners == 0) return -1;
  const int winner = __ffs(static_cast<int>(winners)) - 1;
  uint64_t missing = rest - __shfl_sync(kAllLanes, before, winner);
  const int from = first + (tid - lane + winner) * each;
  const VectorMasses vectors(kept, AnySoftmax{kept.softmax});
  for (int v = from; v < min(from + each, last); v += 32) {
    sum = v + lane < min(from + each, last) ? vectors.sum(part[v + lane], part.id(v + lane)) : 0;
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
      upto += kept_mass(kept, AnySoftmax{kept.softmax}, elements.x[j], part.id(v + lane) + j);
      if (upto > missing) return part.id(v + lane) + j;
    }
  }
  return -1;
}

}  // namespace specdec::cuda
